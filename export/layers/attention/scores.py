"""Eager attention: scores, masks and mixing, as every fused operator must compute them.

Legend: B batch, H query heads, G key and value heads, T queries, S keys, K width of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from export.layers.attention.heads import Heads


def attend(
    heads: Heads,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """softmax(scale · query keyᵀ + bias) value: (B, H, T, K).

    Args:
        key: (B, G, S, K), as `value`.
        visible: bool, broadcast to (B, H, T, S): which keys a query may attend to.
        bias: float, broadcast to (B, H, T, S).
    """
    weights = attention_weights(heads, query, key, visible, bias)
    return weights @ repeat_groups(value, heads)


def attention_weights(
    heads: Heads,
    query: Tensor,
    key: Tensor,
    visible: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """softmax(scale · query keyᵀ + bias): (B, H, T, S); arguments as of `attend`."""
    scores = heads.score_scale * query @ repeat_groups(key, heads).transpose(-1, -2)
    if heads.soft_cap is not None:
        scores = heads.soft_cap * (scores / heads.soft_cap).tanh()
    if bias is not None:
        scores = scores + bias
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    return scores.softmax(dim=-1)


def repeat_groups(x: Tensor, heads: Heads) -> Tensor:
    """(B, G, S, K) → (B, H, S, K): each key and value head for every query head that shares it."""
    if x.shape[1] == heads.count:
        return x
    shared = x[:, :, None].expand(-1, -1, heads.count // heads.groups, -1, -1)
    return shared.flatten(1, 2)


def within(lengths: Tensor, size: int) -> Tensor:
    """(B, size) bool: which positions are no padding."""
    return torch.arange(size, device=lengths.device)[None] < lengths[:, None]


def causal(queries: Tensor, keys: int, window: int | None) -> Tensor:
    """(R, T, S) bool: keys at 0 … S - 1 that queries at (R, T) positions may attend to."""
    distance = queries[..., None] - torch.arange(keys, device=queries.device)
    return distance >= 0 if window is None else (distance >= 0) & (distance < window)


def in_block(queries: Tensor, keys: Tensor) -> Tensor:
    """(R, T, S) bool: queries and keys whose blocks (R, T), (R, S) are one number above 0."""
    return (queries[..., None] == keys[:, None]) & (queries > 0)[..., None]


def not_behind(queries: Tensor, keys: int, window: int) -> Tensor:
    """(R, T, S) bool: keys at 0 … S - 1 that are in the window of queries, or later ones."""
    return queries[..., None] - torch.arange(keys, device=queries.device) < window


def neighbours(size: int, window: int) -> Tensor:
    """(size, size) bool: positions nearer than the window, on either side."""
    positions = torch.arange(size)
    return (positions[:, None] - positions[None]).abs() < window
