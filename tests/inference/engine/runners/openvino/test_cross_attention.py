"""Attention to sources, as paged decoders compute it."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper
from openvino import opset13 as ops

from inference.engine.runners.openvino.cross_attention import replace_cross_attention
from inference.openvino_core import openvino_core

HEADS, WIDTH = 2, 64
RANDOM = np.random.default_rng(7)
SCALES = [None, 0.5]


def attention(scale: float | None) -> Any:
    """An infer request of query (B, H, W, K), key and value (B, H, S, K), bias (B, 1, W, S)."""
    shapes = [[-1, HEADS, -1, WIDTH]] * 3 + [[-1, 1, -1, -1]]
    inputs = [ops.parameter(shape, np.float32) for shape in shapes]
    given = [] if scale is None else [ops.constant(np.float32(scale))]
    attended = ops.scaled_dot_product_attention(*inputs, *given)
    model = openvino.Model([attended], inputs)
    replace_cross_attention(model)
    assert "ScaledDotProductAttention" not in {op.get_type_name() for op in model.get_ops()}
    options = {"INFERENCE_NUM_THREADS": 2, "INFERENCE_PRECISION_HINT": "f32"}
    return openvino_core().compile_model(model, "CPU", options).create_infer_request()


def run(request: Any, *arrays: NDArray[np.float32]) -> NDArray[np.float32]:
    request.infer(list(arrays))
    found: NDArray[np.float32] = request.get_output_tensor(0).data.copy()
    return found


def arrays(sequences: int, rows: int, places: int) -> list[NDArray[np.float32]]:
    """Queries, keys, values, and biases that hide all but some positions of each source."""
    sizes = [(sequences, HEADS, count, WIDTH) for count in (rows, places, places)]
    lengths = 1 + np.arange(sequences) * 5 % places
    is_hidden = np.arange(places) >= lengths[:, None]
    bias = np.where(is_hidden, -np.inf, 0).astype(np.float32)[:, None, None]
    drawn = [RANDOM.standard_normal(size, dtype=np.float32) for size in sizes]
    return [*drawn, np.repeat(bias, rows, 2)]


@pytest.mark.parametrize("scale", SCALES)
def test_attention_to_sources_follows_its_equation(scale: float | None) -> None:
    query, key, value, bias = given = arrays(3, 2, 20)
    scores = (query.astype(np.float64) @ key.swapaxes(2, 3)) * (scale or WIDTH**-0.5) + bias
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = weights / weights.sum(-1, keepdims=True) @ value
    assert np.abs(run(attention(scale), *given) - wanted).max() < 1e-5


def layers_from_onnx() -> openvino.Model:
    """Two layers of ONNX Runtime's MultiHeadAttention of one query to sources with lengths."""
    shapes: dict[str, list[int | str]] = {"query": ["B", "W", HEADS * WIDTH]}
    shapes |= {name: ["B", HEADS, "S", WIDTH] for name in ("key0", "value0", "key1", "value1")}
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    inputs.append(helper.make_tensor_value_info("lengths", TensorProto.INT32, ["B"]))
    options = {"domain": "com.microsoft", "num_heads": HEADS}
    nodes = [
        helper.make_node(
            "MultiHeadAttention", [query, f"key{i}", f"value{i}", "", "lengths"], [out], **options
        )
        for i, (query, out) in enumerate([("query", "between"), ("between", "found")])
    ]
    outputs = [helper.make_tensor_value_info("found", TensorProto.FLOAT, shapes["query"])]
    graph = helper.make_graph(nodes, "layers", inputs, outputs)
    versions = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=versions, ir_version=10)
    return openvino_core().read_model(model.SerializeToString())


@pytest.mark.parametrize("rows", [1, 3])
def test_layers_share_the_mask_of_their_sources(rows: int) -> None:
    query, key, value, _ = arrays(4, rows, 20)
    given = [query.swapaxes(1, 2).reshape(4, rows, -1), key, value, value, key]
    lengths = np.array([20, 1, 7, 13], np.int32)
    found, masks = [], []
    for replaces in (False, True):
        model = layers_from_onnx()
        if replaces:
            replace_cross_attention(model)
        masks.append(sum(op.get_type_name() == "Range" for op in model.get_ordered_ops()))
        options = {"INFERENCE_NUM_THREADS": 2, "INFERENCE_PRECISION_HINT": "f32"}
        request = openvino_core().compile_model(model, "CPU", options).create_infer_request()
        request.infer([*given, lengths])
        found.append(request.get_output_tensor(0).data.copy())
    assert masks == [2, 1]
    assert np.abs(found[0] - found[1]).max() < 1e-5
    assert np.abs(found[1]).max() > 0.1


@pytest.mark.parametrize("rows", [1, 2, 3, 9])
def test_a_rows_attention_does_not_depend_on_rows_or_sequences_beside_it(rows: int) -> None:
    request, given = attention(None), arrays(5, rows, 48)
    together = run(request, *given)
    for sequence in range(5):
        query, key, value, bias = (each[sequence : sequence + 1].copy() for each in given)
        for row in range(rows):
            one = slice(row, row + 1)
            alone = run(request, query[:, :, one].copy(), key, value, bias[:, :, one].copy())
            assert np.array_equal(alone[0, :, 0], together[sequence, :, row])
