"""Int8: close to float32, and bit for bit the same in any batch."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto
from torch import nn

from export.architecture import Lowering
from export.graphs.to_onnx import to_onnx
from export.parity.graph_runs import LazySessions, bundle_path
from export.parity.verify import ParityError
from export.precision import Precision
from export.quantization.quantize import per_channel, quantize
from inference.bundle.manifest import Bundle, Graph, Role, Tensor
from inference.engine.engine import decode
from inference.engine.request import EngineRequest
from inference.engine.runners.ort.runner import OrtRunner
from inference.saturation import open_cpu_session
from tests.export.conftest import Bundles, Lowered, Twins, lowered
from tests.export.twin import EXPORTED
from tests.export.twins import lowerable

Floats = NDArray[np.float32]
Run = Callable[[Floats], Floats]
Layers = Callable[[str], Run]


def _bundle(name: str, twins: Twins, bundles: Bundles, folder: Path, precision: str) -> Bundle:
    """A twin's bundle, copied and lowered."""
    return lowered(bundles(name, EXPORTED), twins(name, EXPORTED), folder, precision)


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> Layers:
    """Precision → a session over one linear layer, lowered."""

    @cache
    def build(precision: str) -> Run:
        x = Tensor(name="x", dtype="float32", shape=("B", "T", 64))
        y = Tensor(name="y", dtype="float32", shape=("B", "T", 40))
        path = tmp_path_factory.mktemp("layer") / "layer.onnx"
        to_onnx(Lowering(_linear(), Graph(file=path.name, inputs=(x,), outputs=(y,))), path)
        if precision != "fp32":
            quantize(path, Precision(precision))
        session = open_cpu_session(path, onnxruntime.SessionOptions())
        return lambda rows: session.run(None, {"x": rows})[0]

    return build


def _linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(64, 40)


def _rows(count: int, positions: int) -> Floats:
    return np.random.default_rng(count).normal(size=(count, positions, 64)).astype(np.float32)


def test_layer_is_close_to_float32(layers: Layers) -> None:
    rows = _rows(8, 3)
    exact, rounded = (layers(precision)(rows) for precision in ("fp32", "int8"))
    assert 0 < np.abs(exact - rounded).max() < 0.02 * np.abs(exact).max()


@pytest.mark.parametrize("positions", [1, 2, 5, 17])
def test_row_is_bit_identical_beside_any_other_rows(layers: Layers, positions: int) -> None:
    run = layers("int8")
    rows = _rows(8, positions)
    alone = run(rows[3:4])
    loud = rows.copy()
    loud[:3] *= 1e6
    loud[4:] *= 1e-6
    np.testing.assert_array_equal(run(rows)[3:4], alone)
    np.testing.assert_array_equal(run(loud)[3:4], alone)


def test_fast_row_depends_on_its_neighbours(layers: Layers) -> None:
    run = layers("int8-fast")
    rows = _rows(8, 1)
    loud = rows.copy()
    loud[:3] *= 1e3
    assert np.abs(run(loud)[3] - run(rows)[3]).max() > 0.1


def test_row_of_zeros_gives_the_bias(layers: Layers) -> None:
    rows = _rows(2, 1)
    rows[0] = 0
    bias = _linear().bias.detach().numpy()
    np.testing.assert_array_equal(layers("int8")(rows)[0, 0], bias)


class _Twice(nn.Module):
    """Two layers with the same weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.linear(x))


@pytest.mark.slow
def test_layers_that_share_their_weights_are_lowered_and_stored_once(tmp_path: Path) -> None:
    """The exporter leaves such a weight's transposition in the graph."""
    x = Tensor(name="x", dtype="float32", shape=("B", "T", 64))
    y = x.model_copy(update={"name": "y"})
    path = tmp_path / "twice.onnx"
    to_onnx(Lowering(_Twice(), Graph(file=path.name, inputs=(x,), outputs=(y,))), path)
    rows = _rows(4, 3)
    exact = onnxruntime.InferenceSession(str(path)).run(None, {"x": rows})[0]
    done = quantize(path, Precision.INT8)
    assert done.layers == 2
    assert done.kept_bytes < 64 * 64
    kinds = Counter(n.op_type for n in onnx.load(str(path)).graph.node)
    assert (kinds["MatMul"], kinds["Transpose"]) == (0, 0)
    rounded = open_cpu_session(path, onnxruntime.SessionOptions()).run(None, {"x": rows})[0]
    assert 0 < np.abs(exact - rounded).max() < 0.03 * np.abs(exact).max()


def test_weights_keep_one_scale_a_channel() -> None:
    weight = np.outer(np.linspace(-1, 1, 9), [1e-3, 1, 1e3, 0]).astype(np.float32)
    quantised, scale = per_channel(weight, axis=0)
    assert np.abs(quantised).max(axis=0).tolist() == [127, 127, 127, 0]
    np.testing.assert_allclose(quantised * scale, weight, atol=float(scale.max()) / 2)


@pytest.mark.parametrize("precision", ["int8", "int8-fast"])
@pytest.mark.parametrize("name", lowerable())
def test_lowered_bundle_passes_its_gate(
    name: str, precision: str, twins: Twins, bundles: Bundles, int8: Lowered, tmp_path: Path
) -> None:
    if precision == "int8":
        bundle = int8(name, EXPORTED)
    else:
        bundle = _bundle(name, twins, bundles, tmp_path, precision)
    report = json.loads((bundle.folder / "report.json").read_text())
    if name == "rnn-encoder":  # operators over whole sequences stay float32
        assert report["int8"]["tables"] == 1
    elif name == "resnet":  # so do convolutions, and the classifier is the one other layer
        assert report["int8"]["layers"] == 1
    else:
        assert report["int8"]["layers"] >= 5
    assert (report["int8"]["rows_alone"] > 0) == (precision == "int8")
    assert 0.98 <= report["int8"]["least_cosine"] < 1
    assert sum(report["graph_bytes"].values()) < report["int8"]["original_bytes"]


@pytest.mark.parametrize("new", [1, 3, 5])
def test_decoder_row_does_not_depend_on_extreme_neighbours(new: int, int8: Lowered) -> None:
    bundle = int8("marian", EXPORTED)
    graph = bundle.manifest.graphs["step"]
    run = LazySessions({"step": bundle_path(bundle, "step")})
    feeds = _step_feeds(graph, rows=8, new=new)
    alone = {name: value[5:6] if value.ndim else value for name, value in feeds.items()}
    want = run("step", alone)["logits"]
    for port in graph.inputs:
        if port.role is Role.STATE:
            loudest = 127 if port.dtype == "int8" else 1e4
            feeds[port.name][:5] = loudest
            feeds[port.name][6:] = -loudest
    together = run("step", feeds)["logits"]
    np.testing.assert_array_equal(together[5:6], want)
    assert np.abs(together[0]).max() > 0  # the neighbours are real rows too


def _step_feeds(graph: Graph, rows: int, new: int) -> dict[str, NDArray[np.generic]]:
    """A decoder's inputs after 7 - new positions, with memories of 6."""
    random = np.random.default_rng(0)
    sizes = {"R": rows, "B": rows, "T": new, "P": 8, "S": 6}
    controls: dict[Role, NDArray[np.generic]] = {
        Role.TOKENS: random.integers(0, 60, (rows, new)),
        Role.LENGTHS: np.full(rows, new if new > 1 else 7, np.int32),
        Role.TOTAL: np.array(new if new > 1 else 7, np.int32),
        Role.LAST: np.full(rows, new - 1, np.int64),
        Role.SOURCE: np.full(rows, 6, np.int32),
    }
    return {
        port.name: _state(port, sizes, random) if port.role is Role.STATE else controls[port.role]
        for port in graph.inputs
        if port.role is not None
    }


def _state(port: Tensor, sizes: dict[str, int], random: np.random.Generator) -> NDArray[np.generic]:
    """Random values that fill their type's range."""
    shape = [sizes[d] if isinstance(d, str) else d for d in port.shape]
    if port.dtype == "int8":
        return random.integers(-127, 128, shape, dtype=np.int8)
    return random.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("beams", [1, 4])
def test_tokens_alone_are_those_of_the_batch(beams: int, int8: Lowered) -> None:
    bundle = int8("marian", EXPORTED)
    rules = bundle.manifest.generation.model_copy(
        update={"num_beams": beams, "num_return_sequences": beams, "max_new_tokens": 12}
    )
    random = np.random.default_rng(1)
    requests = [
        EngineRequest(rules, source_ids=random.integers(0, 60, n)) for n in (3, 12, 1, 7, 5, 2)
    ]
    runner = OrtRunner(bundle, threads=1)
    for request, together in zip(requests, decode(runner, requests), strict=True):
        (alone,) = decode(runner, [request])
        for a, b in zip(together.hypotheses, alone.hypotheses, strict=True):
            assert a.token_ids == b.token_ids
            assert a.score == pytest.approx(b.score, abs=1e-5)
    runner.close()


def test_tied_table_is_stored_once(int8: Lowered) -> None:
    bundle = int8("marian", EXPORTED)
    model = onnx.load(str(bundle_path(bundle, "step")))
    width = 30
    large = [t for t in model.graph.initializer if sorted(t.dims) == [width, 64]]
    assert [t.data_type for t in large] == [TensorProto.INT8]
    kept = [t.name for t in model.graph.initializer if t.data_type == TensorProto.FLOAT]
    used = {name for node in model.graph.node for name in node.input}
    assert set(kept) <= used


def test_bias_of_zeros_is_dropped_and_others_are_kept(
    twins: Twins, bundles: Bundles, tmp_path: Path
) -> None:
    path = tmp_path / "step.onnx"
    original = onnx.load(str(bundle_path(bundles("marian", "odd"), "step")))
    (bias,) = (n.input[2] for n in original.graph.node if n.op_type == "Gemm")
    for is_zero in (False, True):
        for tensor in original.graph.initializer:
            if is_zero and tensor.name == bias:
                zeros = np.zeros(list(tensor.dims), np.float32)
                tensor.CopyFrom(onnx.numpy_helper.from_array(zeros, bias))
        onnx.save_model(original, str(path))
        quantize(path, Precision.INT8)
        used = {name for node in onnx.load(str(path)).graph.node for name in node.input}
        assert (bias in used) == (not is_zero)


def test_gate_refuses_scales_of_the_wrong_axis(
    twins: Twins, bundles: Bundles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(weight: Floats, axis: int) -> tuple[NDArray[np.int8], Floats]:
        quantised, scale = per_channel(weight, axis)
        return quantised, np.roll(scale, 1) * np.linspace(0.2, 2, len(scale), dtype=np.float32)

    monkeypatch.setattr("export.quantization.quantize.per_channel", wrong)
    with pytest.raises(ParityError, match="too much"):
        _bundle("clip", twins, bundles, tmp_path, "int8")


def test_gate_refuses_rows_that_depend_on_neighbours(
    twins: Twins, bundles: Bundles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "export.quantization.lower_precision.quantize",
        lambda path, precision: quantize(path, Precision.INT8_FAST),
    )
    with pytest.raises(ParityError, match="depends on its neighbours"):
        _bundle("marian", twins, bundles, tmp_path, "int8")
