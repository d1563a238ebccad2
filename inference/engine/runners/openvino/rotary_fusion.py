"""Rotations of queries and keys in the form that OpenVINO computes as one operator.

Legend: w rotated dimensions of a head.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino
from openvino import opset13 as ops

_RANK = 4


def fuse_rotations(model: openvino.Model) -> None:
    """Writes each rotation of halves as x · cos + [-x2, x1] · sin; changes the model in place.

    [x1 · cos - x2 · sin, x2 · cos + x1 · sin], as graphs have it, is ten operators of a layer's
    queries and keys, each with its own pass and its own wait for all threads. OpenVINO 2026.4
    recognises the other form (`RoPEFusionGPTNEOX`).
    """
    wide: dict[tuple[str, int], Any] = {}
    for node in model.get_ordered_ops():
        parts = _halves(node)
        if parts is None:
            continue
        whole, first, second, *turns = parts
        cosine, sine = (_doubled(each, wide) for each in turns)
        half = first.get_partial_shape()[-1].get_length()
        axis, sizes = ops.constant(np.int64(_RANK - 1)), ops.constant(np.array([half] * 2))
        first, second = ops.variadic_split(whole, axis, sizes).outputs()
        turned = ops.concat([ops.multiply(second, ops.constant(np.float32(-1))), first], -1)
        rotated = ops.add(ops.multiply(whole, cosine), ops.multiply(turned, sine))
        node.output(0).replace(rotated.output(0))


def _halves(node: Any) -> tuple[Any, Any, Any, Any, Any] | None:
    """x, x1, x2, cosine and sine (…, w / 2) of a concatenation that rotates x (…, w)."""
    if node.get_type_name() != "Concat" or node.get_input_size() != 2:
        return None
    one, other = (_inputs_of(each, kind) for each, kind in _kinds(node, "Subtract", "Add"))
    if one is None or other is None:
        return None
    products = [_inputs_of(each, "Multiply") for each in (*one, *other)]
    if any(each is None for each in products):
        return None
    (first, cosine), (second, sine), *rest = (each for each in products if each is not None)
    if [tuple(map(_place, pair)) for pair in rest] != [
        (_place(second), _place(cosine)),
        (_place(first), _place(sine)),
    ]:
        return None
    split = first.get_node()
    is_split = split.get_type_name() in ("Split", "VariadicSplit") and len(split.outputs()) == 2
    if not is_split or [_place(first), _place(second)] != list(map(_place, split.outputs())):
        return None
    whole = split.input_value(0)
    shapes = [each.get_partial_shape() for each in (whole, first, cosine, sine)]
    if any(len(shape) != _RANK or shape[_RANK - 1].is_dynamic for shape in shapes):
        return None
    width, *halves = (shape[_RANK - 1].get_length() for shape in shapes)
    return (whole, first, second, cosine, sine) if halves == [width // 2] * 3 else None


def _kinds(node: Any, *kinds: str) -> list[tuple[Any, str]]:
    """A node's inputs, and the type of node that each is expected to be of."""
    return list(zip(node.input_values(), kinds, strict=True))


def _inputs_of(value: Any, kind: str) -> tuple[Any, Any] | None:
    """The two inputs of the node that a value is of, if it has that type."""
    node = value.get_node()
    return tuple(node.input_values()) if node.get_type_name() == kind else None


def _doubled(turn: Any, wide: dict[tuple[str, int], Any]) -> Any:
    """(…, w / 2) → (…, w), once for all rotations that share it."""
    key = _place(turn)
    if key not in wide:
        wide[key] = ops.concat([turn, turn], -1).output(0)
    return wide[key]


def _place(value: Any) -> tuple[str, int]:
    """Which output of which node a value is."""
    return value.get_node().get_name(), value.get_index()
