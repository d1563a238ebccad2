"""Weights beside a graph are read and written one tensor at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from export.graphs.external_data import PAGE, data_path, open_graph, save, values, weight_bytes
from export.precision import Precision
from export.quantization.quantize import quantize
from tests.traced_memory import memory_below

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
