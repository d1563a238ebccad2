"""Attention to sources in the form that OpenVINO computes with the fewest passes over their keys.

Decision D116.

Legend: B sequences, H heads, W rows of a sequence, S positions of a source, K width of a head.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino
from openvino import opset13 as ops


def replace_cross_attention(model: openvino.Model) -> None:
    """Spells out each ScaledDotProductAttention (B, H, W, K) of `step`; changes the model in place.

    OpenVINO 2026.4 decomposes it into keys times the scale, a transposed copy of them, and two
    products: three passes over all sources in every step, of which the products need one.

    Each row multiplies the keys by itself. Several rows at once have another kernel, which adds up
    in another order, so that a row's bits would depend on the number of rows beside it, and which
    is slower: it copies the keys first.
    """
    for node in model.get_ordered_ops():
        if node.get_type_name() == "ScaledDotProductAttention":
            node.output(0).replace(_attend(*node.input_values(), **node.get_attributes()))


def _attend(query: Any, key: Any, value: Any, bias: Any, scale: Any = None, *, causal: bool) -> Any:
    """(B, H, W, K); the bias (B, 1, W, S) hides the positions behind each source's end."""
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
