"""The gate: near ties, rounding, memory, short contexts.

Weight matrices are multiplied by a gain, so that attention chooses between near scores. PyTorch's
own float32 is then up to 5e-5 away from float64, and the old bound of 1e-5 refused such networks.
"""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import cache, partial, partialmethod
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import Tensor, nn
from torch.nn import functional

from export.architecture import Graphs, Lowering
from export.parity import graph_runs, judge, token_parity, verify
from export.parity.graph_runs import LazySessions, TimedRun, file_bytes, torch_run
from export.parity.judge import CEILING, MULTIPLE, TOLERANCE, Distance, Float64, allowed, in_float64
from export.parity.parity_inputs import (
    Array,
    Feeds,
    Probe,
    Run,
    output_row,
    single_row,
    stateless_feeds,
    without_padding,
)
from export.parity.token_parity import compare_tokens, mixed_requests
from export.parity.torch_runner import TorchGroup
from export.parity.verify import ParityError, Report, _compare_outputs, observe, relative_difference
from export.parity.verify import verify as verify_ill_conditioned
from export.parity.verify import verify as verify_short_contexts
from export.pipeline.manifest import Request, build_manifest
from export.quantization.calibrate import StoredArrays
from export.registry import ARCHITECTURES, architecture, families, module_of
from export.report.rows import Failure, RowsAlone
from inference.bundle.inputs import TokenizerSpec
from inference.bundle.manifest import Bundle, Graph, Manifest, Role
from inference.bundle.manifest import Tensor as Port
from inference.engine.runners.ort.runner import OrtGroup
from tests.export.conftest import SIBLINGS, Bundles, TwinPair, Twins, export_graphs
from tests.export.faults.faults import Fault, change
from tests.export.faults.faults_decoders import DECODER_FAULTS
from tests.export.faults.faults_seq2seq import FAULTS as SEQ2SEQ_FAULTS
from tests.export.test_planted_faults import disturb
from tests.export.twin import EXPORTED
from tests.inference.tiny_models import make_manifest, manifest


class Choosing(nn.Module):
    """The best two of four places, the first two of which always tie; rank decides what follows."""

    def __init__(self) -> None:
        super().__init__()
        rows = [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [0.5, 0.1, 0.2], [0.1, 0.1, 0.1]]
        self.places = nn.Parameter(torch.tensor(rows))
        self.values = nn.Parameter(torch.tensor([3.0, 5.0, 7.0, 11.0]))
        self.ranks = nn.Parameter(torch.tensor([1.0, 10.0]))

    def forward(self, pixels: Tensor, chosen: Tensor | None = None) -> tuple[Tensor, ...]:
        scores = (pixels.float().mean(dim=(1, 2)) + 1) @ self.places.T
        best, places = scores.topk(2, dim=1)
        if chosen is not None:
            best, places = best + (best - scores.gather(1, chosen)).abs(), chosen
        return self.values[places] * self.ranks, places, best


PIXELS = Port(name="pixels", dtype="uint8", shape=("B", 2, 2, 3), role=Role.PIXELS)
OUTPUTS = (
    Port(name="logits", dtype="float32", shape=("B", 2), role=Role.LOGITS),
    Port(name="chosen", dtype="int64", shape=("B", 2), role=Role.CHOSEN),
    Port(name="best", dtype="float32", shape=("B", 2), role=Role.CHOSEN_SCORES),
)
GRAPH = Graph(file="model.onnx", inputs=(PIXELS,), outputs=OUTPUTS)


class Session:
    """An exported graph that chooses these places.

    Args:
        is_consistent: Whether it returns the scores of the places that it chose.
    """

    def __init__(self, graphs: Graphs, chosen: tuple[int, int], *, is_consistent: bool) -> None:
        self._run = torch_run(graphs)
        self._module = graphs.lowerings["detect"].module
        self._chosen = chosen
        self._is_consistent = is_consistent

    def __call__(self, key: str, feeds: Feeds) -> dict[str, Array]:
        pixels = torch.from_numpy(feeds["pixels"])
        chosen = torch.tensor([self._chosen] * len(pixels))
        outputs = self._run(key, {**feeds, "chosen": chosen.numpy()})
        best = self._run(key, feeds)["best"]
        if self._is_consistent:
            assert isinstance(self._module, Choosing)
            scores = (pixels.float().mean(dim=(1, 2)) + 1) @ self._module.places.T
            best = scores.gather(1, chosen).detach().numpy()
        return {**outputs, "best": best}

    def close(self) -> None:
        pass


def _judge(chosen: tuple[int, int], *, is_consistent: bool = True) -> Report:
    graphs = Graphs({"detect": Lowering(Choosing(), GRAPH)}, parts={"detect": ""})
    described = manifest("detect", parts={"detect": "x"}, graphs={"detect": GRAPH})
    described = described.model_copy(update={"tokenizer": None, "generation": None})
    report, run = Report(), Session(graphs, chosen, is_consistent=is_consistent)
    _compare_outputs(report, graphs, Bundle(Path("x"), described), run, TimedRun())
    return report


@pytest.mark.parametrize("chosen", [(0, 1), (1, 0)])
def test_either_order_of_a_tie_is_right(chosen: tuple[int, int]) -> None:
    report = _judge(chosen)
    assert report.worst_difference < 1e-6
    assert set(report.outputs) == {"detect logits", "detect best"}


@pytest.mark.parametrize("is_consistent", [False, True])
@pytest.mark.parametrize("chosen", [(0, 2), (3, 1)])
def test_a_choice_that_is_not_the_best_is_refused(
    chosen: tuple[int, int], is_consistent: bool
) -> None:
    with pytest.raises(ParityError, match="detect"):
        _judge(chosen, is_consistent=is_consistent)


def _rows_alone(change: dict[str, Array]) -> RowsAlone:
    """Rows that alone have other outputs than in their batch."""
    described = manifest("detect", parts={"detect": "x"}, graphs={"detect": GRAPH})
    batch = {"logits": [[3.0, 50.0]], "chosen": [[0, 1]], "best": [[2.0, 2.0]]}

    def run(key: str, feeds: Feeds) -> dict[str, Array]:
        outputs = {name: np.array(value * len(feeds["pixels"])) for name, value in batch.items()}
        return outputs | (change if len(feeds["pixels"]) == 1 else {})

    rows = RowsAlone(run, described, tolerance=1e-5)
    rows("detect", {"pixels": np.zeros((2, 2, 2, 3), np.uint8)})
    return rows


def test_a_row_alone_may_choose_the_other_of_a_tie() -> None:
    other = {"logits": np.array([[5.0, 30.0]]), "chosen": np.array([[1, 0]])}
    assert _rows_alone(other).compared == 2
    with pytest.raises(Failure, match="detect row 0: logits alone differs"):
        _rows_alone({"logits": other["logits"]})
    with pytest.raises(Failure, match="detect row 0: best alone differs"):
        _rows_alone(other | {"best": np.array([[2.0, 1.9]])})


def unexported(twin: TwinPair) -> Bundle:
    """A twin's manifest; no graph is written."""
    graphs = twin.graphs()
    manifest, _ = build_manifest(Request("twin"), 1, twin.source, graphs)
    return Bundle(Path("none"), manifest)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.full if n in SIBLINGS else ()) for n in families()],
)
def test_float64_is_near_float32(name: str, twins: Twins) -> None:
    graphs, bundle = twins(name, EXPORTED).graphs(), unexported(twins(name, EXPORTED))
    worst = 0.0
    for exact, rounded in zip(
        observe(graphs, bundle, torch_run(in_float64(graphs))),
        observe(graphs, bundle, torch_run(graphs)),
        strict=True,
    ):
        assert exact.place == rounded.place
        if rounded.value.dtype == np.float32:
            assert exact.value.dtype == np.float64, exact.place
            difference = np.abs(exact.value - rounded.value).max() / np.abs(exact.value).max()
            assert difference < 1e-5, exact.place
            worst = max(worst, difference)
    assert worst > 1e-9, "nothing was computed more exactly"


@pytest.mark.parametrize("has_bias", [True, False])
def test_large_matrix_is_widened_in_parts_of_any_size(
    has_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight = torch.randn(2, 3, 40), torch.randn(50, 40)
    bias = torch.randn(50) if has_bias else None
    wanted = functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    weights = [weight] if bias is None else [weight, bias]
    for elements in (1, 7 * 40, 49 * 40, 50 * 40):
        monkeypatch.setattr(judge, "_BLOCK_ELEMENTS", elements)
        with Float64(weights):
            found = functional.linear(x, weight, bias)
        assert found.dtype is torch.float64
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


_TABLE = """
import resource, torch
from export.parity.judge import Float64
x, table = torch.ones(1, 1024), torch.ones(60_000, 1024)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with torch.no_grad(), Float64([table]):
    found = torch.nn.functional.linear(x, table)
assert found.unique().tolist() == [1024.0]
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_large_table_is_not_held_in_float64() -> None:
    """Of a process of its own, since a peak of memory is that of its whole life."""
    done = subprocess.run([sys.executable, "-c", _TABLE], capture_output=True, text=True)
    assert int(done.stdout) < 100 << 10, done.stderr  # KiB, of 469 MiB


def test_outputs_of_pytorch_are_there_before_a_graph_is_opened(
    twins: Twins, bundles: Bundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    callers: list[str] = []
    modules, sessions = verify.torch_run, graph_runs.LazySessions.__call__

    def called(graphs: Any) -> Run:
        run = modules(graphs)

        def recorded(key: str, feeds: Feeds) -> dict[str, Any]:
            callers.append("PyTorch")
            return run(key, feeds)

        return recorded

    def opened(self: graph_runs.LazySessions, key: str, feeds: Feeds) -> dict[str, Any]:
        callers.append("graph")
        return sessions(self, key, feeds)

    monkeypatch.setattr(verify, "torch_run", called)
    monkeypatch.setattr(graph_runs.LazySessions, "__call__", opened)
    monkeypatch.setattr(verify, "compare_tokens", lambda *_: token_parity.TokenParity())
    report = verify.verify(twins("gpt2", "odd").graphs(), bundles("gpt2", "odd"))
    assert report.observations
    assert callers.index("graph") == callers.count("PyTorch") >= 2 * 14
    assert 2 * callers.count("graph") == callers.count("PyTorch")  # timed as they are compared
    assert report.milliseconds.keys() == {"step"}
    assert report.milliseconds["step"] > 0


def test_tokens_of_pytorch_are_there_before_a_graph_is_opened(
    twins: Twins, bundles: Bundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    runners: list[str] = []
    search = token_parity.decode

    def recorded(runner: Any, *given: Any) -> Any:
        runners.append(type(runner).__name__)
        return search(runner, *given)

    def opened(*given: Any, **options: Any) -> Any:
        assert runners == ["TorchRunner"] * len(token_parity.BEAMS)
        return make_runner(*given, **options)

    make_runner = token_parity.make_runner
    monkeypatch.setattr(token_parity, "decode", recorded)
    monkeypatch.setattr(token_parity, "make_runner", opened)
    parity = compare_tokens(twins("gpt2", "odd").graphs(), bundles("gpt2", "odd"))
    assert parity.compared
    assert "TorchRunner" not in runners[len(token_parity.BEAMS) :]


@pytest.mark.parametrize(
    ("name", "most_bytes", "together"),
    [("led", 1 << 40, 2), ("marian", 1 << 40, 4), ("marian", 0, 2)],
)
def test_searches_of_much_memory_are_two_at_a_time(
    name: str,
    most_bytes: int,
    together: int,
    twins: Twins,
    bundles: Bundles,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admitted: dict[str, int] = {}

    def count(admit: Any, /, group: Any, prompts: Any, *given: Any) -> Any:
        kind = type(group).__name__
        admitted[kind] = max(admitted.get(kind, 0), len(prompts))
        return admit(group, prompts, *given)

    for owner, called in (OrtGroup, "admit"), (OrtGroup, "admit_deferred"), (TorchGroup, "admit"):
        counting = partialmethod(partial(count, getattr(owner, called)))
        monkeypatch.setattr(owner, called, counting)
    monkeypatch.setattr(token_parity, "_MOST_BYTES", most_bytes)
    parity = compare_tokens(twins(name, EXPORTED).graphs(), bundles(name, EXPORTED))
    assert parity.compared
    assert admitted == {"OrtGroup": together, "TorchGroup": together}


GAINS = {"t5": 4.0, "gpt_neo": 6.0, "gemma2": 12.0}
EVERY = [pytest.param(n, marks=() if n == "gpt_neo" else pytest.mark.full) for n in GAINS]
EPSILON = "another epsilon in the norms"
"""T5's 1e-6 for 1e-3. At this gain the norm's inputs are so large that the exact outputs differ by
3e-6 and those of float32 by 3e-5, whatever computes them; in the twin as it is they differ by 2e-3,
which the gate finds (`test_planted_faults.py`). Here the wrong epsilon is 0.5."""
FAULTS: dict[str, Mapping[str, Fault]] = {
    name: DECODER_FAULTS.get(name) or SEQ2SEQ_FAULTS[name, EXPORTED] for name in GAINS
}
SMALL_EPSILON = FAULTS["t5"][EPSILON]
FAULTS["t5"] = {
    **FAULTS["t5"],
    EPSILON: change(lambda net: setattr(net.decoder.blocks[0].mlp_norm, "eps", 0.5)),
}
Hot = Callable[[str], tuple[nn.Module, Bundle]]


def amplified(twin: TwinPair, gain: float) -> nn.Module:
    network = copy.deepcopy(twin.network)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(gain)
    return network


@pytest.fixture(scope="module")
def hot(twins: Twins, tmp_path_factory: pytest.TempPathFactory) -> Hot:
    """Architecture → an amplified network and its exported graphs."""

    @cache
    def build(name: str) -> tuple[nn.Module, Bundle]:
        twin = twins(name, EXPORTED)
        network = amplified(twin, GAINS[name])
        graphs = twin.architecture.graphs(copy.deepcopy(network), twin.prepared.image)
        manifest, _ = build_manifest(Request("twin"), 1, twin.source, graphs)
        stage = tmp_path_factory.mktemp(name)
        export_graphs(graphs, manifest, stage)
        return network, Bundle(Path(stage) / manifest.name, manifest)

    return build


def graphs_of(name: str, network: nn.Module, twins: Twins) -> Graphs:
    twin = twins(name, EXPORTED)
    return twin.architecture.graphs(network, twin.prepared.image)


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_sound_graph_of_an_ill_conditioned_network_passes(
    name: str, twins: Twins, hot: Hot
) -> None:
    network, bundle = hot(name)
    report = verify_ill_conditioned(graphs_of(name, copy.deepcopy(network), twins), bundle)
    assert max(report.pytorch.values()) > TOLERANCE, "this network is not ill-conditioned"
    for output, distance in report.outputs.items():
        assert distance <= report.allowed[output] == allowed(report.pytorch[output])
    assert report.tokens["differences"] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "title"),
    [
        pytest.param(*each.values, title, marks=each.marks)
        for each in EVERY
        for title in FAULTS[str(each.values[0])]
    ],
)
def test_planted_fault_in_an_ill_conditioned_network_fails(
    name: str, title: str, twins: Twins, hot: Hot
) -> None:
    network, bundle = hot(name)
    changed = copy.deepcopy(network)
    graphs = graphs_of(name, changed, twins)
    with FAULTS[name][title](changed), pytest.raises(ParityError, match="nothing was published"):
        verify_ill_conditioned(graphs, bundle)


@pytest.mark.full
def test_wrong_epsilon_that_passes_moves_outputs_less_than_rounding_does(
    twins: Twins, hot: Hot
) -> None:
    network, bundle = hot("t5")
    changed = copy.deepcopy(network)
    graphs, wrong = graphs_of("t5", copy.deepcopy(network), twins), graphs_of("t5", changed, twins)

    def outputs(run: Run) -> list[Array]:
        return [each.value for each in observe(graphs, bundle, run)]

    exact, rounded = outputs(torch_run(in_float64(graphs))), outputs(torch_run(graphs))
    with SMALL_EPSILON(changed):
        mistaken = outputs(torch_run(in_float64(wrong)))
    fault, rounding = (max(map(relative_difference, exact, each)) for each in (mistaken, rounded))
    assert 0 < 5 * fault < rounding


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_disturbed_weight_in_an_ill_conditioned_network_fails(
    name: str, twins: Twins, hot: Hot
) -> None:
    network, bundle = hot(name)
    changed = copy.deepcopy(network)
    disturb([weight for weight in changed.parameters() if weight.ndim == 2][-1])
    with pytest.raises(ParityError, match="nothing was published"):
        verify_ill_conditioned(graphs_of(name, changed, twins), bundle)


def test_what_is_allowed_follows_pytorch_between_two_bounds() -> None:
    assert allowed(0.0) == allowed(TOLERANCE / 10) == TOLERANCE
    assert allowed(1e-4) == MULTIPLE * 1e-4
    assert allowed(0.5) == CEILING
    assert allowed(float("nan")) == TOLERANCE


def test_distance_that_is_no_number_is_refused() -> None:
    distance = Distance()
    distance.add("step 0", float("nan"), 1e-6)
    distance.add("step 1", 1e-7, 1e-6)
    assert not distance.is_allowed
    assert "step 0" in distance.refusal()


def test_network_of_rounding_alone_is_named_so() -> None:
    distance = Distance()
    distance.add("step 0", 0.3, 0.2)
    assert "rounding alone decides" in distance.refusal()


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Three graphs that add 1, 2 and 3."""
    return {str(number): _adding(number, tmp_path / f"{number}.onnx") for number in (1, 2, 3)}


def _adding(number: int, path: Path) -> Path:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["B"]) for n in "xy")
    amount = helper.make_tensor("amount", TensorProto.FLOAT, [1], [float(number)])
    node = helper.make_node("Add", ["x", "amount"], ["y"])
    graph = helper.make_graph([node], "adding", [x], [y], [amount])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save_model(model, str(path))
    return path


def test_graphs_are_loaded_when_called_and_unloaded_beyond_the_bound(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    size = max(map(file_bytes, files.values()))
    monkeypatch.setattr("export.parity.graph_runs.RESIDENT_BYTES", 2 * size)
    run = LazySessions(files)
    held = []
    for key in ("1", "2", "1", "3", "2"):
        (sum_,) = run(key, {"x": np.zeros(1, np.float32)})["y"]
        assert sum_ == int(key)
        held.append(set(run._open))
    assert held == [{"1"}, {"1", "2"}, {"1", "2"}, {"1", "3"}, {"3", "2"}]
    run.close()
    assert run("1", {"x": np.zeros(1, np.float32)})["y"] == 1


def test_stored_arrays_are_read_as_they_were_appended() -> None:
    arrays = [np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros((0, 4)), np.array(3)]
    stored = StoredArrays()
    for value in arrays:
        stored.append(value)
    assert len(stored) == 3
    for value, read in zip(arrays, stored, strict=True):
        np.testing.assert_array_equal(value, read)
        assert value.dtype == read.dtype
    np.testing.assert_array_equal(stored[-1], arrays[-1])


FUSED = ("llama", "rotated by the operator")
"""GroupQueryAttention reads a table of 32 positions, and refuses calls beyond it."""


def manifest_of(twin: TwinPair) -> Manifest:
    return build_manifest(Request("twin"), 1, twin.source, twin.graphs())[0]


@pytest.mark.parametrize("positions", [4, 12, 32])
def test_prompts_of_the_gate_end_within_the_positions(positions: int, twins: Twins) -> None:
    twin = twins(*FUSED)
    manifest = manifest_of(twin)
    limits = {"max_input_tokens": positions - 1, "max_total_tokens": positions}
    short = manifest.model_copy(update={"limits": manifest.limits.model_copy(update=limits)})
    for request in mixed_requests(short, 1):
        assert 0 < len(request.prompt_ids) < positions
        assert 0 < request.rules.max_new_tokens <= positions - len(request.prompt_ids)


@pytest.mark.slow
def test_network_of_few_positions_that_the_operator_rotates_passes(
    twins: Twins, tmp_path: Path
) -> None:
    twin = twins(*FUSED)
    manifest = manifest_of(twin)
    export_graphs(twin.graphs(), manifest, tmp_path)
    assert verify_short_contexts(twin.graphs(), Bundle(tmp_path / manifest.name, manifest)).tokens[
        "compared"
    ]


MODULES = (
    "export.parity.graph_runs",
    "export.parity.parity_inputs",
    "export.parity.verify",
    "export.pipeline.publish",
    "export.graphs.to_onnx",
)
NAMES = {
    *ARCHITECTURES,
    *(module_of(name).rpartition(".")[2] for name in ARCHITECTURES),
    *(task for name in ARCHITECTURES for task in architecture(name).tasks),
} - {"align"}  # a graph of generators has the name of that architecture, too


@pytest.mark.parametrize("module", MODULES)
def test_module_names_no_task_and_no_architecture(module: str) -> None:
    text = Path(import_module(module).__file__ or "").read_text(encoding="utf-8")
    words = "|".join(re.escape(name).replace(r"\-", "[-_ ]") for name in sorted(NAMES))
    # methods of numpy may be called like a model (`.clip(`)
    assert re.findall(rf"(?<![.\w])(?:{words})(?!\w)", text, re.IGNORECASE) == []


def test_stateless_inputs_are_drawn_by_role_whatever_their_names() -> None:
    inputs = (
        Port(name="a", dtype="int64", shape=("B", "T"), role=Role.TOKENS),
        Port(name="b", dtype="int32", shape=("B",), role=Role.LENGTHS),
        Port(name="c", dtype="int64", shape=("B", "T"), role=Role.SEGMENTS),
        Port(name="d", dtype="uint8", shape=("B", 4, 6, 3), role=Role.PIXELS),
    )
    output = Port(name="f", dtype="float32", shape=("B", 8), role=Role.EMBEDDING)
    graph = Graph(file="g.onnx", inputs=inputs, outputs=(output,))
    tokenizer = TokenizerSpec(kind="tokenizers", pad_token_id=0, eos_token_id=9, files={})
    described = make_manifest("x", "x", {"g": graph}, parts={"g": "x"}, tokenizer=tokenizer)
    feeds = stateless_feeds(graph, described, Probe(50, 50), 3, 7)
    assert feeds["a"].shape == feeds["c"].shape == (3, 7)
    assert feeds["b"][0] == 7
    np.testing.assert_array_equal(feeds["a"][np.arange(3), feeds["b"] - 1], 9)
    assert set(np.unique(feeds["c"])) <= {0, 1}
    alone = single_row(graph, feeds, 1)
    assert alone["a"].shape == alone["c"].shape == (1, feeds["b"][1])
    assert alone["d"].shape == (1, 4, 6, 3)


def test_padding_of_hidden_states_is_not_compared() -> None:
    """Two graphs may differ at padding; a row alone has none."""
    inputs = (
        Port(name="a", dtype="int64", shape=("B", "T"), role=Role.TOKENS),
        Port(name="b", dtype="int32", shape=("B",), role=Role.LENGTHS),
    )
    hidden = Port(name="h", dtype="float32", shape=("B", "T", 4), role=Role.HIDDEN)
    weights = Port(name="w", dtype="float32", shape=("B", 2, "T", "T"), role=Role.ATTENTION)
    graph = Graph(file="g.onnx", inputs=inputs, outputs=(hidden, weights))
    feeds = {"a": np.ones((2, 5), np.int64), "b": np.array([5, 3], np.int32)}
    for port, shape in ((hidden, (2, 5, 4)), (weights, (2, 2, 5, 5))):
        value = np.full(shape, 7, np.float32)
        kept = without_padding(graph, feeds, port, value)
        assert (kept[0] == 7).all()
        assert kept[1].sum() == 7 * output_row(graph, feeds, port, value, 1).size
    assert output_row(graph, feeds, hidden, np.ones((2, 5, 4)), 1).shape == (1, 3, 4)
    assert output_row(graph, feeds, weights, np.ones((2, 2, 5, 5)), 1).shape == (1, 2, 3, 3)


def test_unknown_role_is_refused() -> None:
    port = Port(name="a", dtype="float32", shape=("B",), role=Role.LOGITS)
    graph = Graph(file="g.onnx", inputs=(port,), outputs=())
    with pytest.raises(AssertionError, match="no probe for an input of role logits"):
        stateless_feeds(graph, Manifest.model_construct(tokenizer=None), Probe(5, 5), 1, 1)
