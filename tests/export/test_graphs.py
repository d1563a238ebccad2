"""Exported files: interface, operators, weights beside the graph, sources of any length."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor as TorchTensor
from torch import nn
from torch.onnx._internal.exporter import _fx_passes

from export.architecture import Lowering
from export.graphs import to_onnx as exporter
from export.graphs.external_data import (
    PAGE,
    data_path,
    open_graph,
    save,
    share_weights,
    values,
    weight_bytes,
)
from export.graphs.to_onnx import MAX_IR, OPSET, _shallow_copy, to_onnx
from export.parity.graph_runs import bundle_path
from export.precision import Precision
from export.quantization.quantize import quantize
from export.registry import families
from inference.bundle.manifest import Graph, Tensor
from inference.bundle.manifest import Tensor as Port
from tests.export.conftest import Bundles, Twins, pair_of
from tests.export.twin import EXPORTED
from tests.export.twins import make_twin
from tests.traced_memory import memory_below


def _models(bundles: Bundles, name: str) -> dict[str, onnx.ModelProto]:
    bundle = bundles(name, EXPORTED)
    return {key: onnx.load(str(bundle_path(bundle, key))) for key in bundle.manifest.graphs}


@pytest.mark.parametrize("name", families())
def test_files_have_the_interface_of_the_manifest(name: str, bundles: Bundles) -> None:
    for key, model in _models(bundles, name).items():
        graph = bundles(name, EXPORTED).manifest.graphs[key]
        for declared, ports in (
            (model.graph.input, graph.inputs),
            (model.graph.output, graph.outputs),
        ):
            shapes = [
                tuple(d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim)
                for value in declared
            ]
            assert [value.name for value in declared] == [port.name for port in ports]
            assert shapes == [port.shape for port in ports]


@pytest.mark.parametrize("name", families())
def test_files_are_old_enough_for_a_current_container(name: str, bundles: Bundles) -> None:
    for model in _models(bundles, name).values():
        assert model.ir_version <= MAX_IR
        versions = {opset.domain: opset.version for opset in model.opset_import}
        assert versions.pop("") <= OPSET
        assert set(versions) <= {"com.microsoft"}


def test_decoder_attends_with_the_fused_operators(bundles: Bundles) -> None:
    operators = [node.op_type for node in _models(bundles, "marian")["step"].graph.node]
    assert operators.count("GroupQueryAttention") == 2  # one a layer
    assert operators.count("MultiHeadAttention") == 2
    assert "Softmax" not in operators


def test_tied_table_is_stored_once(bundles: Bundles) -> None:
    model = _models(bundles, "marian")["step"]
    tables = [t for t in model.graph.initializer if sorted(t.dims) == [30, 64]]
    assert len(tables) == 1


class _Square(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x.shape[0]


def _square(path: Path, rows: int | str) -> None:
    port = Tensor(name="x", dtype="float32", shape=(rows, 4))
    graph = Graph(file="x.onnx", inputs=(port,), outputs=(port.model_copy(update={"name": "mul"}),))
    to_onnx(Lowering(_Square(), graph), path)


@pytest.mark.slow
def test_output_may_be_called_like_an_operator(tmp_path: Path) -> None:
    _square(tmp_path / "x.onnx", "B")
    model = onnx.load(str(tmp_path / "x.onnx"))
    assert [value.name for value in model.graph.output] == ["mul"]


@pytest.mark.slow
def test_large_weights_go_beside_the_file(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(4096, 2048), nn.Linear(2048, 4100))  # above 64 MiB together
    size = sum(each.weight.nbytes for each in module)
    port = Tensor(name="x", dtype="float32", shape=("B", 4096))
    y = Tensor(name="y", dtype="float32", shape=("B", 4100))
    graph = Graph(file="x.onnx", inputs=(port,), outputs=(y,))
    with memory_below(1.5 * size):  # as a message they are held once more
        to_onnx(Lowering(module, graph), tmp_path / "x.onnx")
    assert (tmp_path / "x.onnx.data").stat().st_size >= size


def test_export_neither_copies_nor_changes_the_weights() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    copied = _shallow_copy(module)
    module[0].register_buffer("packed", torch.zeros(1))
    assert not hasattr(copied[0], "packed")
    pairs = zip(module.parameters(), copied.parameters(), strict=True)
    assert all(one is other for one, other in pairs)


@pytest.mark.slow
def test_large_weights_give_the_same_graph(
    twins: Twins, bundles: Bundles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("export.graphs.to_onnx.EXTERNAL_DATA_BYTES", 0)
    inside = onnx.load(str(bundle_path(bundles("gpt2", EXPORTED), "step")))
    to_onnx(twins("gpt2", EXPORTED).graphs().lowerings["step"], tmp_path / "step.onnx")
    assert (tmp_path / "step.onnx").stat().st_size < (tmp_path / "step.onnx.data").stat().st_size
    onnxruntime.InferenceSession(str(tmp_path / "step.onnx"))
    beside = onnx.load(str(tmp_path / "step.onnx"))
    assert [node.op_type for node in inside.graph.node] == [n.op_type for n in beside.graph.node]
    want = {tensor.name: numpy_helper.to_array(tensor) for tensor in inside.graph.initializer}
    got = {tensor.name: numpy_helper.to_array(tensor) for tensor in beside.graph.initializer}
    assert want.keys() == got.keys()
    assert all((want[name] == got[name]).all() for name in want)
    sizes = [(t.name, t.dims) for t in beside.graph.initializer if list(t.dims) == [64, 30]]
    assert len(sizes) == 1  # the tied table


class Views(nn.Module):
    """Of tensors in order and not, with sizes that are given, left out and merged."""

    outputs = (("B", 4, "T", 2, 3), ("B", "C"), ("T", "D", 6), ("B", "E", 6), ("B", 4, "T", 6))

    def forward(self, x: TorchTensor, like: TorchTensor) -> tuple[TorchTensor, ...]:
        split = x.unflatten(-1, (2, 3))
        joined = split.transpose(2, 3).flatten(1)
        left_out = x.transpose(0, 2).reshape(x.shape[2], -1, 6)
        in_order = x.reshape(x.shape[0], -1, 6)
        return split, joined, left_out, in_order, x[:, :1].expand_as(like)


class Values(nn.Module):
    """What has another name or other arguments in ONNX."""

    outputs = (("B", 4, "T", 3), ("B", 4, "T", 6), ("B", 4, "T", 6), ("B", 4, "T", 6), (6, "C"))

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(4)
        self.norm.running_mean = torch.tensor([0.5, -1.0, 2.0, 0.0])
        self.norm.running_var = torch.tensor([0.5, 1.0, 2.0, 4.0])

    def forward(self, x: TorchTensor, like: TorchTensor) -> tuple[TorchTensor, ...]:
        low, high = x.chunk(2, dim=-1)
        seen = ((x > 0) & (like > 0)) | (x < -1)
        chosen = (1 - x).masked_fill(seen, 0.0)
        normalised = self.norm(x).to(torch.float32)
        rounded = (x * 9).to(torch.int64).to(torch.float32)
        return low - high, chosen, normalised, rounded, x.flatten(0, 2).T


class Mixed(nn.Module):
    """Arguments of different types, of which one is cast, and results of another type."""

    outputs = (("B", 4, "T", 6),) * 5

    def forward(self, x: TorchTensor, like: TorchTensor) -> tuple[TorchTensor, ...]:
        whole, seen = (x * 9).to(torch.int64), like > 0
        scaled, share = x * x.shape[0], whole / 7
        raised = torch.where(seen, whole, 0.5)
        return scaled, share, raised, whole * like, (seen + whole).to(torch.float32)


class Decomposed(nn.Module):
    """Has an operator that only the exporter decomposes, between two that are replaced."""

    outputs = (("B", "C"),)

    def forward(self, x: TorchTensor, like: TorchTensor) -> tuple[TorchTensor, ...]:
        return (x.flatten(2).movedim(2, 1).flatten(1),)


def _lowering(module: nn.Module) -> Lowering:
    shape = ("B", 4, "T", 6)
    inputs = tuple(Port(name=name, dtype="float32", shape=shape) for name in ("x", "like"))
    outputs = tuple(
        Port(name=f"out_{index}", dtype="float32", shape=shape)
        for index, shape in enumerate(module.outputs)
    )
    return Lowering(module, Graph(file="model.onnx", inputs=inputs, outputs=outputs))


@pytest.fixture
def traced_twice(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The programs that the exporter's own decomposition has read."""
    decompose, programs = _fx_passes.decompose_with_registry, []

    def record(program: object, registry: object) -> object:
        programs.append(program)
        return decompose(program, registry)

    monkeypatch.setattr(_fx_passes, "decompose_with_registry", record)
    return programs


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Views, Values, Mixed, Decomposed])
def test_graph_computes_what_one_of_a_second_trace_does(
    kind: type[nn.Module],
    tmp_path: Path,
    traced_twice: list[object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, files = kind(), [tmp_path / "one.onnx", tmp_path / "two.onnx"]
    to_onnx(_lowering(module), files[0])
    assert len(traced_twice) == (kind is Decomposed)
    monkeypatch.setattr(exporter, "traced_once", nullcontext)
    to_onnx(_lowering(module), files[1])
    one, two = (Counter(node.op_type for node in onnx.load(file).graph.node) for file in files)
    assert one <= two  # sizes may be computed in fewer steps
    for sizes in ((3, 4, 5, 6), (1, 4, 1, 6)):
        x, like = torch.randn(2, *sizes)
        feeds = {"x": x.numpy(), "like": like.numpy()}
        wanted = module.eval()(x, like)
        for file in files:
            found = onnxruntime.InferenceSession(file).run(None, feeds)
            for want, got in zip(wanted, found, strict=True):
                torch.testing.assert_close(torch.from_numpy(got), want)


def _computed(monkeypatch: pytest.MonkeyPatch) -> list[torch.fx.Node]:
    """The operators that the exporter computes again, since this call."""
    nodes, run_node = [], torch.fx.Interpreter.run_node

    def record(self: torch.fx.Interpreter, node: torch.fx.Node) -> object:
        nodes.extend([node] * (node.op == "call_function"))
        return run_node(self, node)

    monkeypatch.setattr(torch.fx.Interpreter, "run_node", record)
    return nodes


@pytest.mark.slow
def test_only_what_is_cast_is_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = _computed(monkeypatch)
    to_onnx(_lowering(Views()), tmp_path / "views.onnx")
    assert computed == []
    to_onnx(_lowering(Mixed()), tmp_path / "mixed.onnx")
    assert 0 < len(computed) < 20  # the network has 10 operators


@pytest.mark.slow
def test_published_graphs_hold_no_paths_of_this_machine(tmp_path: Path) -> None:
    to_onnx(_lowering(Values()), tmp_path / "values.onnx")
    assert str(Path(__file__).parent).encode() not in (tmp_path / "values.onnx").read_bytes()


Floats = NDArray[np.float32]


@pytest.fixture(autouse=True)
def all_weights_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("export.graphs.external_data.EXTERNAL_DATA_BYTES", 0)


def _linear(path: Path, weight: Floats) -> None:
    """Y = x · weight + 1, its weights beside it."""
    rows, columns = weight.shape
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["B", rows])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["B", columns])
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["product"]),
        helper.make_node("Add", ["product", "one"], ["y"]),
    ]
    constants = [
        numpy_helper.from_array(weight, "weight"),
        numpy_helper.from_array(np.ones(1, np.float32), "one"),
    ]
    graph = helper.make_graph(nodes, "linear", [x], [y], constants)
    opset = [helper.make_opsetid("", 20)]
    save(helper.make_model(graph, opset_imports=opset, ir_version=10), path)


def _weight(rows: int, columns: int) -> Floats:
    return np.random.default_rng(0).normal(size=(rows, columns)).astype(np.float32)


def _run(path: Path, x: Floats) -> Floats:
    (y,) = onnxruntime.InferenceSession(str(path)).run(None, {"x": x})
    return y


def test_large_weights_lie_at_whole_pages_beside_the_graph(tmp_path: Path) -> None:
    path, weight = tmp_path / "linear.onnx", _weight(64, 40)
    _linear(path, weight)
    tensors = {tensor.name: tensor for tensor in open_graph(path).graph.initializer}
    places = {entry.key: entry.value for entry in tensors["weight"].external_data}
    assert int(places["offset"]) % PAGE == 0
    assert not tensors["one"].external_data
    np.testing.assert_array_equal(values(tensors["weight"], tmp_path), weight)
    assert weight_bytes(tensors["weight"]) == weight.nbytes
    x = _weight(3, 64)
    np.testing.assert_allclose(_run(path, x), x @ weight + 1, rtol=1e-4, atol=1e-4)


def test_graph_is_rewritten_over_its_own_weights(tmp_path: Path) -> None:
    path, weight = tmp_path / "linear.onnx", _weight(64, 40)
    _linear(path, weight)
    model = open_graph(path)
    longer = numpy_helper.from_array(np.full(40, 7, np.float32), "seven" * 300)
    model.graph.initializer.insert(0, longer)
    save(model, path)
    first, second, _ = open_graph(path).graph.initializer
    np.testing.assert_array_equal(values(first, tmp_path), np.full(40, 7))
    np.testing.assert_array_equal(values(second, tmp_path), weight)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["linear.onnx", "linear.onnx.data"]


@pytest.mark.parametrize("element", [TensorProto.BFLOAT16, TensorProto.FLOAT16, TensorProto.INT4])
def test_weights_of_every_type_are_moved_out_and_rewritten(element: int, tmp_path: Path) -> None:
    path, numbers = tmp_path / "held.onnx", np.tile(np.arange(-4, 4), 500).tolist()
    held = helper.make_tensor("held", element, [40, 100], numbers)
    y = helper.make_tensor_value_info("y", element, [40, 100])
    node = helper.make_node("Identity", ["held"], ["y"])
    graph = helper.make_graph([node], "held", [], [y], [held])
    opset = [helper.make_opsetid("", 21)]
    save(helper.make_model(graph, opset_imports=opset, ir_version=10), path)
    for _ in range(2):
        model = open_graph(path)
        (tensor,) = model.graph.initializer
        assert tensor.external_data
        assert weight_bytes(tensor) == data_path(path).stat().st_size
        assert values(tensor, tmp_path).astype(np.int64).reshape(-1).tolist() == numbers
        save(model, path)


@pytest.mark.parametrize("limit", [0, 1 << 20], ids=["beside", "inside"])
def test_graphs_of_a_folder_share_equal_weights(
    limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("export.graphs.external_data.EXTERNAL_DATA_BYTES", limit)
    monkeypatch.setattr("export.graphs.external_data.SHARING_BYTES", 0)
    weights = {"admit": _weight(64, 40), "step": _weight(32, 70), "align": _weight(64, 40)}
    weights["other"] = weights["admit"].copy()
    weights["other"][-1, -1] += 1
    paths = [tmp_path / f"{name}.onnx" for name in weights]
    for path, weight in zip(paths, weights.values(), strict=True):
        _linear(path, weight)
    before = [_run(path, np.eye(len(weights[path.stem]), dtype=np.float32)) for path in paths]
    share_weights(paths)
    for path, want in zip(paths, before, strict=True):
        identity = np.eye(len(weights[path.stem]), dtype=np.float32)
        np.testing.assert_array_equal(_run(path, identity), want)
    assert data_path(paths[0]).stat().st_size == weights["admit"].nbytes
    assert not data_path(paths[2]).exists()
    assert paths[2].stat().st_size < 1000
    assert [data_path(paths[i]).exists() for i in (1, 3)] == [limit == 0] * 2


def test_equal_bytes_of_another_type_are_not_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("export.graphs.external_data.SHARING_BYTES", 0)
    paths = [tmp_path / "one.onnx", tmp_path / "two.onnx"]
    for path, element in zip(paths, (TensorProto.INT8, TensorProto.INT4), strict=True):
        held = helper.make_tensor("held", element, [4000], np.tile(np.arange(-4, 4), 500).tolist())
        y = helper.make_tensor_value_info("y", element, [4000])
        node = helper.make_node("Identity", ["held"], ["y"])
        graph = helper.make_graph([node], "held", [], [y], [held])
        opset = [helper.make_opsetid("", 21)]
        save(helper.make_model(graph, opset_imports=opset, ir_version=10), path)
    share_weights(paths)
    assert [data_path(path).stat().st_size for path in paths] == [4000, 2000]


def test_small_weights_go_back_into_the_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, weight = tmp_path / "linear.onnx", _weight(64, 40)
    _linear(path, weight)
    monkeypatch.setattr("export.graphs.external_data.EXTERNAL_DATA_BYTES", 1 << 20)
    save(open_graph(path), path)
    assert not data_path(path).exists()
    tensor = onnx.load(str(path)).graph.initializer[0]
    np.testing.assert_array_equal(numpy_helper.to_array(tensor), weight)


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.INT8_FAST])
def test_int8_is_the_same_beside_the_graph_and_in_it(
    precision: Precision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, found = _weight(3, 64), []
    for limit in (0, 1 << 20):
        path = tmp_path / f"{limit}.onnx"
        monkeypatch.setattr("export.graphs.external_data.EXTERNAL_DATA_BYTES", limit)
        _linear(path, _weight(64, 40))
        quantised = quantize(path, precision)
        assert quantised.layers == 1
        assert 164 <= quantised.kept_bytes < 200
        found.append(_run(path, x))
    np.testing.assert_array_equal(*found)


def test_quantising_does_not_hold_the_weights(tmp_path: Path) -> None:
    path, weight = tmp_path / "linear.onnx", _weight(4096, 1024)
    _linear(path, weight)
    with memory_below(weight.nbytes):
        quantize(path, Precision.INT8)


BLOCKS: dict[str, dict[str, Any]] = {
    "longt5": {"local_radius": 7, "global_block_size": 16},
    "pegasus_x": {"block_size": 16, "max_position_embeddings": 256},
}
"""Encoders that attend in blocks, with short ones."""


@pytest.mark.slow
@pytest.mark.parametrize("name", BLOCKS)
def test_graph_takes_sources_of_any_number_of_blocks(name: str, tmp_path: Path) -> None:
    pair = pair_of(name, EXPORTED, tmp_path, make_twin(name, EXPORTED, tmp_path, BLOCKS[name]))
    network = pair.graphs().lowerings["admit"].module
    to_onnx(pair.graphs().lowerings["admit"], tmp_path / "admit.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "admit.onnx"))
    names = [each.name for each in session.get_inputs()]
    for lengths in ([7, 3], [1], [16, 9], [48, 1, 20], [130]):
        tokens = torch.randint(3, 60, (len(lengths), max(lengths)))
        inputs = tokens, torch.tensor(lengths, dtype=torch.int32)
        with torch.no_grad():
            wanted = network(*inputs)
        feeds = {key: value.numpy() for key, value in zip(names, inputs, strict=True)}
        for want, got in zip(wanted, session.run(None, feeds), strict=True):
            for row, length in enumerate(lengths):
                expected = want[row, :, :length].numpy()
                np.testing.assert_allclose(got[row, :, :length], expected, atol=1e-4)
