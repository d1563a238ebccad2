"""Rotations of halves, as decoders over OpenVINO compute them."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino
import pytest
from numpy.typing import NDArray
from openvino import opset13 as ops

from inference.engine.runners.openvino.rotary_fusion import fuse_rotations
from inference.openvino_core import openvino_core

HEADS, WIDTH, PLACES = 3, 16, 40
RANDOM = np.random.default_rng(3)
TABLES = RANDOM.standard_normal((2, PLACES, WIDTH // 2), np.float32)


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
    x = ops.parameter([-1, HEADS, 1, WIDTH], np.float32)
    places = ops.parameter([-1], np.int64)
    turned = rotation(x, places, swaps=swaps)
    model = openvino.Model([turned, rotation(ops.relu(x), places)], [x, places])
    fuse_rotations(model)
    options = {"INFERENCE_NUM_THREADS": 2, "INFERENCE_PRECISION_HINT": "f32"}
    return openvino_core().compile_model(model, "CPU", options)


def run(request: Any, x: NDArray[np.float32], places: NDArray[np.int64]) -> NDArray[np.float32]:
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
    x = RANDOM.standard_normal((9, HEADS, 1, WIDTH), np.float32)
    places = RANDOM.integers(0, PLACES, 9)
    found = run(model.create_infer_request(), x, places)
    assert np.abs(found - wanted(x, places)).max() < 1e-5


@pytest.mark.parametrize("rows", [1, 2, 3, 33])
def test_a_rows_bits_do_not_depend_on_rows_beside_it(rows: int) -> None:
    request = compiled().create_infer_request()
    x = RANDOM.standard_normal((rows, HEADS, 1, WIDTH), np.float32)
    places = RANDOM.integers(0, PLACES, rows)
    found = run(request, x, places)
    for row in range(rows):
        alone = run(request, x[row : row + 1], places[row : row + 1])
        assert np.array_equal(found[row : row + 1], alone)


def test_what_is_no_rotation_stays_as_it_is() -> None:
    assert count(compiled(swaps=True), "RoPE") == 1
