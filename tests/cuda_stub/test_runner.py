"""The CUDA runner and our Triton backends end to end over the stub."""

from __future__ import annotations

import json
import shutil
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import onnx
import onnxruntime
import pytest

from export.parity.graph_runs import bundle_path
from export.precision import Precision
from export.targets.cuda.assignment import SHAPE_ARITHMETIC, assign
from inference.bundle.manifest import MANIFEST, Bundle, Role
from inference.engine.runner_factory import make_runner
from inference.engine.runners.candidates import CandidateRequest, Edit, plain_request
from inference.engine.runners.cuda.device import CudaDevice
from inference.engine.runners.ort.sessions import CpuDevice
from inference.engine.runners.protocol import Group, Prompt
from inference.engine.state.device import EntryCopies
from inference.errors import BundleError, DeviceError
from tests.cuda_stub.conftest import OnDevice
from tests.cuda_stub.stub_library import Counts, Stub

CASES = [
    ("gpt2", Precision.FP16),
    ("gpt2", Precision.BF16),
    ("gpt2", Precision.FP32),
    ("marian", Precision.FP16),
    ("llama", Precision.FP16),
    ("t5", Precision.FP16),
    ("bahdanau", Precision.FP16),
    ("rnn-lm", Precision.FP16),
    ("vision-encoder-decoder", Precision.FP16),
    ("vision-encoder-decoder", Precision.FP32),
    ("show-attend-tell", Precision.FP16),
]


def prompt_of(bundle: Bundle, tokens: int = 3) -> Prompt:
    """A prompt with a source of the bundle's kind."""
    token_ids = np.arange(1, tokens + 1)
    admit = bundle.manifest.graphs.get("admit")
    if admit is None:
        return Prompt(token_ids)
    pixels = admit.input(Role.PIXELS)
    if pixels is not None:
        shape = [size for size in pixels.shape[1:] if isinstance(size, int)]
        return Prompt(token_ids, pixels=np.zeros(shape, np.uint8))
    return Prompt(token_ids, source_ids=np.arange(5))


def counted(stub: Stub, call: Callable[[], object]) -> Counts:
    before = stub.read()
    call()
    return stub.read() - before


def step(group: Group, rows: int) -> None:
    group.step(np.zeros(rows, np.int64), [plain_request(2)] * rows)


@pytest.mark.parametrize(("name", "precision"), CASES)
def test_steps_are_replayed_with_one_launch(
    stub: Stub, on_device: OnDevice, name: str, precision: Precision
) -> None:
    bundle = on_device(name, precision)
    runner = make_runner(bundle, "cuda:0")
    group = runner.group(1)
    group.admit([prompt_of(bundle)] * 2, [plain_request(1)] * 2)
    first, *_ = [counted(stub, lambda: step(group, 2)) for _ in range(3)]
    later = [counted(stub, lambda: step(group, 2)) for _ in range(3)]
    assert first.launches > later[0].launches
    assert first.graph_launches == 0
    for each in later:
        assert each.captures == 0
        assert each.graph_launches == 1
        assert each.allocations == 0
    runner.close()


def test_step_copies_its_controls_and_fetches_candidates(stub: Stub, on_device: OnDevice) -> None:
    """Tokens and lengths go there, ids and log-probabilities of two candidates come back."""
    runner = make_runner(on_device("gpt2", Precision.FP16), "cuda")
    group = runner.group(1)
    group.admit([Prompt(np.arange(1, 4))] * 2, [plain_request(1)] * 2)
    for _ in range(3):
        step(group, 2)
    found = counted(stub, lambda: step(group, 2))
    assert (found.host_to_device, found.device_to_host) == (2, 2)
    assert found.device_to_device == found.memsets == 0
    runner.close()


def test_edits_and_beams_stay_on_the_device(stub: Stub, on_device: OnDevice) -> None:
    bundle = on_device("gpt2", Precision.FP16)
    runner = make_runner(bundle, "cuda")
    group = runner.group(3)
    group.admit([Prompt(np.arange(1, 4))], [plain_request(3)])
    found = counted(stub, lambda: group.copy([0, 0], [1, 2]))
    assert (found.batches, found.device_to_device, found.device_to_host) == (1, 0, 0)
    assert counted(stub, lambda: group.copy([0, 0], [1, 2])).batches == 0  # they are equal
    group.step(np.arange(3), [plain_request(3)] * 3)
    found = counted(stub, lambda: group.copy([0, 1], [1, 2]))  # the second reads the first's row
    assert (found.batches, found.device_to_device) == (2, 0)
    ones = np.ones(4, np.float32)
    request = CandidateRequest(2, Edit(np.arange(4), ones, ones * 2, ones))
    for _ in range(4):
        group.step(np.zeros(3, np.int64), [request] * 3)
    found = counted(stub, lambda: group.step(np.zeros(3, np.int64), [request] * 3))
    assert found.graph_launches == 1
    assert found.device_to_host == 3  # edited scores, ids, log-probabilities
    runner.close()


def test_other_layouts_are_other_graphs(stub: Stub, on_device: OnDevice) -> None:
    """More rows and longer rows are captured anew; the first layout is replayed when it returns."""
    runner = make_runner(on_device("gpt2", Precision.FP16), "cuda")
    group = runner.group(1)
    prompt = Prompt(np.arange(100) % 8)  # in a bucket of 128 positions, which no step leaves

    def captures(rows: int) -> int:
        return sum(counted(stub, lambda: step(group, rows)).captures for _ in range(4))

    group.admit([prompt] * 8, [plain_request(1)] * 8)
    assert captures(8) == 1
    for _ in range(3):
        group.retire(0)
    assert captures(5) == 1  # bound to 6 rows
    group.retire(0)
    assert captures(4) == 1
    group.admit([prompt] * 4, [plain_request(1)] * 4)
    assert captures(8) == 0
    group.release()
    again = runner.group(1)
    again.admit([prompt] * 8, [plain_request(1)] * 8)
    assert sum(counted(stub, lambda: step(again, 8)).captures for _ in range(4)) == 0
    runner.close()


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The autoregressive backend's model class, without Triton around it."""
    utilities = types.ModuleType("triton_python_backend_utils")
    for name in ("MetricFamily", "Logger", "InferenceResponse", "Tensor", "TritonError"):
        setattr(utilities, name, MagicMock())
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", utilities)
    for name in [name for name in sys.modules if name.startswith("serving.backends")]:
        monkeypatch.delitem(sys.modules, name)
    from serving.backends.autoregressive.model import TritonPythonModel

    return TritonPythonModel


def arguments(bundle: Bundle, folder: Path, card: int = 0, **parameters: str) -> dict[str, str]:
    """What Triton gives an instance on a card."""
    folder = folder / bundle.manifest.name
    version = folder / "1"
    shutil.copytree(bundle_path(bundle, "step").parent, version, dirs_exist_ok=True)
    (version / MANIFEST).write_text(bundle.manifest.model_dump_json(), encoding="utf-8")
    (version / bundle.manifest.report).write_text("{}", encoding="utf-8")
    values = {name: {"string_value": value} for name, value in parameters.items()}
    return {
        "model_repository": str(folder),
        "model_version": "1",
        "model_name": bundle.manifest.name,
        "model_instance_name": f"{bundle.manifest.name}_0",
        "model_instance_kind": "GPU",
        "model_instance_device_id": str(card),
        "model_config": json.dumps({"parameters": values}),
    }


def test_generator_is_warmed_up_on_the_card(
    stub: Stub, on_device: OnDevice, backend: Any, tmp_path: Path
) -> None:
    before = stub.read()
    model = backend()
    model.initialize(arguments(on_device("gpt2", Precision.FP16), tmp_path))
    model.finalize()
    assert (stub.read() - before).launches > 0


def test_rows_that_do_not_fit_are_refused_at_load(
    stub: Stub, on_device: OnDevice, backend: Any, tmp_path: Path
) -> None:
    given = arguments(
        on_device("gpt2", Precision.FP16), tmp_path, max_rows="4096", prefix_memory="0"
    )
    with stub.free_bytes(3 << 20), pytest.raises(BundleError, match=r"max_rows \d+ would fit"):
        backend().initialize(given)


def test_card_that_is_not_there_is_refused_at_load(
    stub: Stub, on_device: OnDevice, backend: Any, tmp_path: Path
) -> None:
    with pytest.raises(DeviceError, match="there is no card 5"):
        backend().initialize(arguments(on_device("gpt2", Precision.FP16), tmp_path, card=5))


CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
_COPIES = ("MemcpyFromHost", "MemcpyToHost")


@dataclass(frozen=True)
class Placement:
    """One graph's.

    Attributes:
        nodes: Provider → name → operator, of the nodes that it was assigned.
        copies: Nodes that copy between host and device, which ONNX Runtime added.
    """

    nodes: dict[str, dict[str, str]]
    copies: int

    def operators(self, provider: str) -> Counter[str]:
        """Operators of a provider."""
        return Counter(self.nodes.get(provider, {}).values())


def place(path: Path, folder: Path, *, is_optimised: bool, **options: str) -> Placement:
    """The placement of a graph.

    Args:
        folder: For the graph as ONNX Runtime runs it.
        is_optimised: Whether operators are fused first, as in serving.
        options: Of the CUDA provider.
    """
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    settings.optimized_model_filepath = str(folder / "placed.onnx")
    if not is_optimised:
        settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    providers: list[Any] = [(CUDA, options), CPU]
    session = onnxruntime.InferenceSession(str(path), settings, providers=providers)
    assert session.get_providers()[0] == CUDA
    nodes: dict[str, dict[str, str]] = {}
    for part in session.get_provider_graph_assignment_info():
        found = {node.name: node.op_type for node in part.get_nodes()}
        nodes.setdefault(part.ep_name, {}).update(found)
    model = onnx.load(str(folder / "placed.onnx"), load_external_data=False)
    return Placement(nodes, sum(node.op_type in _COPIES for node in _all_nodes(model.graph)))


def _all_nodes(graph: onnx.GraphProto) -> Iterable[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            yield from _all_nodes(attribute.g)


FP32, FP16, BF16 = Precision.FP32, Precision.FP16, Precision.BF16
PRECISIONS = {
    "gpt2": (FP32, FP16, BF16),
    "marian": (FP32, FP16, BF16),
    "t5": (FP32, FP16, BF16),
    "llama": (FP32, FP16, BF16),
    "vision-encoder-decoder": (FP32, FP16),
    "clip": (FP32, FP16),
    "vit": (FP32, FP16),
    "bert": (FP32, FP16, BF16),
    "rnn-lm": (FP32, FP16),
    "bahdanau": (FP32, FP16, BF16),
}
"""One architecture of each kind → what its bundles for CUDA may be."""
ENCODERS = ("clip", "vit", "bert")
PLACEMENTS = [(name, precision) for name, each in PRECISIONS.items() for precision in each]


@pytest.mark.parametrize(("name", "precision"), PLACEMENTS)
def test_every_node_is_placed_as_the_table_says(
    stub: Stub, on_device: OnDevice, name: str, precision: Precision, tmp_path: Path
) -> None:
    bundle = on_device(name, precision)
    for key in bundle.manifest.graphs:
        path = bundle_path(bundle, key)
        expected, found = assign(path, key), place(path, tmp_path, is_optimised=False)
        on_host = found.operators(CPU)
        assert on_host <= expected.host + expected.movable, f"{key}: nodes that CUDA should compute"
        assert sum(found.operators(CUDA).values()) > sum(on_host.values())
        served = place(path, tmp_path, is_optimised=True)
        assert set(served.operators(CPU)) <= SHAPE_ARITHMETIC
        assert not served.copies, f"{key}: copies between host and device"


@pytest.mark.parametrize(("name", "precision"), [c for c in PLACEMENTS if c[0] not in ENCODERS])
def test_step_may_be_captured(
    stub: Stub, on_device: OnDevice, name: str, precision: Precision, tmp_path: Path
) -> None:
    bundle = on_device(name, precision)
    place(bundle_path(bundle, "step"), tmp_path, is_optimised=True, enable_cuda_graph="1")


@pytest.mark.parametrize("has_batches", [True, False])
def test_rows_of_several_states_are_copied(stub: Stub, has_batches: bool) -> None:
    device, host = CudaDevice(), CpuDevice()
    assert device.runtime._has_batches, "the stub is CUDA 13's"
    device.runtime._has_batches = has_batches
    values = [np.random.rand(6, 3, 8, 4).astype(np.float16), np.random.rand(6, 5).astype("f4")]
    tensors = []
    for each in values:
        tensor = device.view(device.allocate(each.size, str(each.dtype)), each.shape)
        device.upload(each, tensor)
        tensors.append(tensor)
    pairs = [(0, 1), (0, 2), (5, 4)]
    places = ((2, [(0, 5), (2, 5), (1, 8)]), (None, ()))
    before = stub.read()
    for memory, states in ((device, tensors), (host, values)):
        memory.copy_entries(
            *(
                EntryCopies([each], [each], pairs, *place)
                for each, place in zip(states, places, strict=True)
            )
        )
    found = stub.read() - before
    assert (found.batches, found.device_to_device) == ((1, 0) if has_batches else (0, 6))
    for tensor, wanted in zip(tensors, values, strict=True):
        np.testing.assert_array_equal(device.fetch(tensor), wanted)
