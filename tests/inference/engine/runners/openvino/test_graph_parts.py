"""Parts of paged decoders' graphs: attention to sources, rotations, images of prompts."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import openvino
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper
from openvino import opset13 as ops

from inference.engine.runners.openvino.paged_graph import fuse_rotations, replace_cross_attention
from inference.engine.runners.openvino.prompt_images import ImageRows
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


ROTARY_FUSION_HEADS, ROTARY_FUSION_WIDTH, PLACES = 3, 16, 40
ROTARY_FUSION_RANDOM = np.random.default_rng(3)
TABLES = ROTARY_FUSION_RANDOM.standard_normal((2, PLACES, ROTARY_FUSION_WIDTH // 2), np.float32)


def rotation(x: Any, places: Any, *, swaps: bool = False) -> Any:
    """Of x (N, H, 1, w) at places (N,), as exported graphs have it."""
    axis, middle = ops.constant(np.int64(0)), ops.constant(np.array([1, 2]))
    cosine, sine = (
        ops.unsqueeze(ops.gather(ops.constant(table), places, axis), middle) for table in TABLES
    )
    first, second = ops.split(x, ops.constant(np.int64(3)), 2).outputs()
    one = ops.subtract(ops.multiply(first, cosine), ops.multiply(second, sine))
    pair = (first, second) if swaps else (second, first)
    other = ops.add(ops.multiply(pair[0], cosine), ops.multiply(pair[1], sine))
    return ops.concat([one, other], -1)


def compiled(*, swaps: bool = False) -> Any:
    """A graph of two rotations at the same places."""
    x = ops.parameter([-1, ROTARY_FUSION_HEADS, 1, ROTARY_FUSION_WIDTH], np.float32)
    places = ops.parameter([-1], np.int64)
    turned = rotation(x, places, swaps=swaps)
    model = openvino.Model([turned, rotation(ops.relu(x), places)], [x, places])
    fuse_rotations(model)
    options = {"INFERENCE_NUM_THREADS": 2, "INFERENCE_PRECISION_HINT": "f32"}
    return openvino_core().compile_model(model, "CPU", options)


def run_rotary_fusion(
    request: Any, x: NDArray[np.float32], places: NDArray[np.int64]
) -> NDArray[np.float32]:
    request.infer([x, places])
    found: NDArray[np.float32] = request.get_output_tensor(0).data.copy()
    return found


def wanted(x: NDArray[np.float32], places: NDArray[np.int64]) -> NDArray[np.float64]:
    cosine, sine = TABLES.astype(np.float64)[:, places, None, None]
    first, second = np.split(x, 2, axis=3)
    return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=3)


def count(model: Any, kind: str) -> int:
    """Operators of a type that are run."""
    nodes = model.get_runtime_model().get_ops()
    return sum(node.get_rt_info()["layerType"] == kind for node in nodes)


def test_rotations_are_one_operator_and_follow_their_equation() -> None:
    model = compiled()
    assert count(model, "RoPE") == 2
    x = ROTARY_FUSION_RANDOM.standard_normal(
        (9, ROTARY_FUSION_HEADS, 1, ROTARY_FUSION_WIDTH), np.float32
    )
    places = ROTARY_FUSION_RANDOM.integers(0, PLACES, 9)
    found = run_rotary_fusion(model.create_infer_request(), x, places)
    assert np.abs(found - wanted(x, places)).max() < 1e-5


@pytest.mark.parametrize("rows", [1, 2, 3, 33])
def test_a_rows_bits_do_not_depend_on_rows_beside_it(rows: int) -> None:
    request = compiled().create_infer_request()
    x = ROTARY_FUSION_RANDOM.standard_normal(
        (rows, ROTARY_FUSION_HEADS, 1, ROTARY_FUSION_WIDTH), np.float32
    )
    places = ROTARY_FUSION_RANDOM.integers(0, PLACES, rows)
    found = run_rotary_fusion(request, x, places)
    for row in range(rows):
        alone = run_rotary_fusion(request, x[row : row + 1], places[row : row + 1])
        assert np.array_equal(found[row : row + 1], alone)


def test_what_is_no_rotation_stays_as_it_is() -> None:
    assert count(compiled(swaps=True), "RoPE") == 1


TOKEN, NAME = 7, "vectors"


@given(
    is_image=st.lists(st.booleans(), min_size=1, max_size=30),
    given_rows=st.integers(0, 12),
    left_out=st.integers(0, 4),
    cuts=st.lists(st.integers(0, 30), max_size=3),
)
def test_chunks_have_the_rows_of_their_image_tokens_in_order(
    is_image: list[bool], given_rows: int, left_out: int, cuts: list[int]
) -> None:
    ids = np.array([TOKEN if each else 3 for each in is_image])
    rows = np.arange(left_out, left_out + given_rows)[:, None]
    found = ImageRows(ids, TOKEN, {NAME: rows}, left_out)
    passed = np.cumsum(is_image)
    first = min(len(ids), int(np.searchsorted(passed, left_out)) + 1) if left_out else 0
    places = sorted({first, len(ids), *(max(first, min(cut, len(ids))) for cut in cuts)})
    for start, stop in pairwise(places):
        numbers = [int(passed[t]) - 1 for t in range(start, stop) if is_image[t]]
        wanted = [number for number in numbers if number < left_out + given_rows]
        assert found.of(start, stop)[NAME][:, 0].tolist() == wanted


def test_tokens_behind_an_image_are_shifted_by_it() -> None:
    """An image of three vectors that takes two positions, then one of two that takes one."""
    ids = np.array([3, TOKEN, TOKEN, TOKEN, 3, TOKEN, TOKEN, 3, TOKEN])
    places = np.zeros((5, 4), np.int64)
    places[0, 3] = places[3, 3] = -1
    places[:, 0] = np.arange(5)
    found = ImageRows(ids, TOKEN, {"places": places}, places="places")
    assert found.shifts(0, 9).tolist() == [0, -1, -1, -1, -1, -2, -2, -2, -2]
    assert found.shifts(4, 6).tolist() == [-1, -2]
    assert found.last_shift == -2
    assert found.of(2, 6)["places"].tolist() == [[n, 0, 0, 0] for n in (1, 2, 3)]
