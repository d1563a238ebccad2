"""OpenVINO's int8 graphs compute what they state, whatever products this processor has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from inference.openvino_core import openvino_core
from inference.stateless.compiled_graphs import CompiledGraphs, multiply_in_float32

Floats = NDArray[np.float64]
INPUTS, OUTPUTS, HEADS, HEAD = 64, 64, 4, 16
SCALES = {"x": 1 / 64, "h": 1 / 8}
"""Powers of two: nothing but products can be inexact."""


@pytest.fixture
def weight() -> NDArray[np.int8]:
    """Loud: sums of pairs exceed 16 bits."""
    random = np.random.default_rng(0)
    return (127 * random.choice([-1, 1], (INPUTS, OUTPUTS))).astype(np.int8)


@pytest.fixture
def path(tmp_path: Path, weight: NDArray[np.int8]) -> Path:
    """A layer, and the products of its heads with each other, as NNCF writes them."""
    held = [
        numpy_helper.from_array(weight, "w"),
        numpy_helper.from_array(np.full(OUTPUTS, 1 / 512, np.float32), "ws"),
        numpy_helper.from_array(np.zeros(OUTPUTS, np.int8), "wz"),
        numpy_helper.from_array(np.array([0, 0, HEADS, HEAD]), "heads"),
        numpy_helper.from_array(np.array(5, np.int8), "zero"),
    ]
    held += [numpy_helper.from_array(np.float32(s), f"{n}_scale") for n, s in SCALES.items()]
    nodes = [
        *_rounded("x"),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wf"], axis=1),
        helper.make_node("MatMul", ["x_rounded", "wf"], ["h"]),
        *_rounded("h"),
        helper.make_node("Reshape", ["h_rounded", "heads"], ["parts"]),
        helper.make_node("Transpose", ["parts"], ["queries"], perm=[0, 2, 1, 3]),
        helper.make_node("Transpose", ["parts"], ["keys"], perm=[0, 2, 3, 1]),
        helper.make_node("MatMul", ["queries", "keys"], ["y"]),
    ]
    ports = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["B", "T", INPUTS]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["B", HEADS, "T", "T"]),
    ]
    graph = helper.make_graph(nodes, "int8", ports[:1], ports[1:], held)
    opset = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), tmp_path / "int8.onnx")
    return tmp_path / "int8.onnx"


def _rounded(name: str) -> list[onnx.NodeProto]:
    scale = [f"{name}_scale", "zero"]
    return [
        helper.make_node("QuantizeLinear", [name, *scale], [f"{name}_int8"]),
        helper.make_node("DequantizeLinear", [f"{name}_int8", *scale], [f"{name}_rounded"]),
    ]


def _bytes(values: Floats, name: str) -> Floats:
    found: Floats = np.clip(np.rint(values / SCALES[name]) + 5, -128, 127) - 5
    return found * SCALES[name]


def _expected(rows: Floats, weight: NDArray[np.int8]) -> Floats:
    hidden = _bytes(_bytes(rows, "x") @ (weight / 512), "h")
    heads = hidden.reshape(*rows.shape[:2], HEADS, HEAD).transpose(0, 2, 1, 3)
    found: Floats = heads @ heads.transpose(0, 1, 3, 2)
    return found


def _rows() -> Floats:
    random = np.random.default_rng(1)
    return np.clip(random.normal(1, 1, (3, 7, INPUTS)), -3, 3).round(2)


def _config() -> dict[str, object]:
    return {"name": "int8", "input": [{"name": "x"}], "output": [{"name": "y"}]}


@pytest.mark.parametrize("saturates", [None, True], ids=["as here", "without VNNI"])
def test_int8_products_are_exact(
    saturates: bool | None,
    path: Path,
    weight: NDArray[np.int8],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if saturates:
        module = "inference.stateless.compiled_graphs.products_saturate"
        monkeypatch.setattr(module, lambda: True)
    compiled, rows = CompiledGraphs(path, _config()), _rows()
    found = compiled.run(["y"], {"x": rows.astype(np.float32)})["y"]
    want = _expected(rows, weight)
    assert np.abs(found - want).max() < 1e-5 * np.abs(want).max()
    for row, together in zip(rows.astype(np.float32), found, strict=True):
        assert np.array_equal(compiled.run(["y"], {"x": row[None]})["y"][0], together)


def test_nothing_is_multiplied_in_bytes(path: Path) -> None:
    model = openvino_core().read_model(path)
    assert _int8_nodes(model)
    multiply_in_float32(model)
    assert not _int8_nodes(model)


def _int8_nodes(model: object) -> list[str]:
    """Products that a compiled model computes in int8, or in an operator of unknown parts."""
    compiled = openvino_core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    facts = [each.get_rt_info() for each in compiled.get_runtime_model().get_ops()]
    kinds = [(str(f["layerType"].value), str(f["primitiveType"].value)) for f in facts]
    products = ("FullyConnected", "MatMul", "Subgraph")
    return [kind for kind, form in kinds if kind in products and form.endswith("i8")]


def test_a_graph_without_fixed_scales_stays_as_it_is(tmp_path: Path) -> None:
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    node = helper.make_node("Neg", ["x"], ["y"])
    graph = helper.make_graph([node], "negate", ports[:1], ports[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), tmp_path / "m")
    model = openvino_core().read_model(tmp_path / "m")
    before = [each.get_type_name() for each in model.get_ordered_ops()]
    multiply_in_float32(model)
    assert [each.get_type_name() for each in model.get_ordered_ops()] == before
