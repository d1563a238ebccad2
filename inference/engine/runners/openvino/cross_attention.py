"""Attention to sources in the form that OpenVINO computes with the fewest passes over their keys.

Decision D99.

Legend: B sequences, H heads, W rows of a sequence, S positions of a source, K width of a head.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino
from openvino import opset13 as ops

_MASK = tuple("Select Unsqueeze Broadcast Unsqueeze Greater Unsqueeze Convert Slice".split())
"""How OpenVINO 2026.4 makes the bias of an ONNX MultiHeadAttention of lengths, from its end."""
_HIDDEN = -1e30  # as OpenVINO has it


def replace_cross_attention(model: openvino.Model) -> None:
    """Spells out each ScaledDotProductAttention (B, H, W, K) of `step`; changes the model in place.

    OpenVINO 2026.4 decomposes it into keys times the scale, a transposed copy of them, and two
    products: three passes over all sources in every step, of which the products need one.

    Each row multiplies the keys by itself. Several rows at once have another kernel, which adds up
    in another order, so that a row's bits would depend on the number of rows beside it, and which
    is slower: it copies the keys first.

    Layers whose sources have the same lengths share one mask, since sources of one bundle have one
    S. OpenVINO computes one a layer, by twenty operators each.
    """
    masks: dict[str, Any] = {}
    for node in model.get_ordered_ops():
        if node.get_type_name() == "ScaledDotProductAttention":
            query, key, value, bias, *scale = node.input_values()
            lengths = _lengths_of(bias)
            if lengths is not None:
                name = lengths.get_friendly_name()
                if name not in masks:
                    masks[name] = _mask(lengths.output(0), key)
                bias = masks[name]
            attended = _attend(query, key, value, bias, *scale, **node.get_attributes())
            node.output(0).replace(attended)


def _lengths_of(bias: Any) -> Any:
    """The input of lengths, (B,), that a bias is made of; None if it is made in another way."""
    node = bias.get_node()
    for kind in _MASK:
        if node.get_type_name() != kind:
            return None
        node = node.input_value(0).get_node()
    return node if node.get_type_name() == "Parameter" else None


def _mask(lengths: Any, key: Any) -> Any:
    """(B,) lengths → (B, 1, 1, S): 0 in front of each source's end, a large negative number behind.

    Args:
        key: (B, H, S, K).
    """
    size = ops.gather(ops.shape_of(key, "i32"), _integers(2), _integers(0))
    zero, one = (ops.constant(np.array(value, np.int32)) for value in (0, 1))
    places = ops.range(zero, size, one, "i32")  # (S,)
    is_inside = ops.less(places, ops.unsqueeze(lengths, _integers([1, 2, 3])))
    hidden = ops.constant(np.float32(_HIDDEN))
    return ops.select(is_inside, ops.constant(np.float32(0)), hidden).output(0)


def _attend(query: Any, key: Any, value: Any, bias: Any, scale: Any = None, *, causal: bool) -> Any:
    """(B, H, W, K); the bias (B, 1, 1 or W, S) hides the positions behind each source's end."""
    assert not causal, "sources have no order"
    if scale is None:
        scale = ops.constant(np.float32(query.get_partial_shape()[3].get_length() ** -0.5))
    rows = ops.unsqueeze(ops.multiply(query, scale), _integers([3]))  # (B, H, W, 1, K)
    products = ops.matmul(rows, ops.unsqueeze(key, _integers([2])), False, True)
    scores = ops.squeeze(products, _integers([3]))  # (B, H, W, S)
    weights = ops.softmax(ops.add(scores, bias), -1)
    return ops.matmul(weights, value, False, False).output(0)


def _integers(value: Any) -> Any:
    return ops.constant(np.array(value, np.int64)).output(0)
