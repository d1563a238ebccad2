"""Attention to keys nearby and to a few others, without a matrix of all pairs of positions.

Legend: B batch, N blocks, L positions of a block, H heads, K width of a head, S and G keys.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from export.layers.attention.fused import MASKED_SCORE
from export.layers.attention.heads import Heads, KeyValue


def in_blocks(x: Tensor, size: int) -> Tensor:
    """(B, H, N·L, K) → (B, N, H, L, K), of blocks of L = `size` positions."""
    return x.unflatten(2, (-1, size)).transpose(1, 2)


def join_blocks(x: Tensor) -> Tensor:
    """(B, N, H, L, K) → (B, N·L, H·K)."""
    return x.transpose(2, 3).flatten(3).flatten(1, 2)


def missing(size: int, block: int) -> int:
    """Positions by which a source is padded to whole blocks.

    Not `-size % block`, whose conditions on dynamic sizes `torch.export` does not solve.
    """
    return (size + block - 1) // block * block - size


def beside(x: Tensor) -> Tensor:
    """(B, N, H, L, K) → (B, N, H, 3·L, K): each block between its neighbours."""
    x = functional.pad(x, (0, 0, 0, 0, 0, 0, 1, 1))
    return torch.cat([x[:, :-2], x[:, 1:-1], x[:, 2:]], dim=3)


def attend_near(
    heads: Heads,
    query: Tensor,
    near: KeyValue,
    others: KeyValue | None,
    visible: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    """One softmax over one or two groups of keys: (B, N, H, L, K).

    A query that sees nothing, which only padding does, has a finite result: its position is a key
    of the next layer.

    Args:
        query: (B, N, H, L, K).
        near: A block's own keys and values, each (B, N, H, S, K).
        others: Those of all blocks, which are not repeated for each, (B, 1, H, G, K); or none.
        visible: Broadcast to (B, N, H, L, S + G).
        bias: Of the scores, likewise.
    """
    query = heads.score_scale * query
    keys = [near[0]] if others is None else [near[0], others[0]]
    # scores, then weights: one name, so that each is freed for the next
    weights = torch.cat([query @ key.transpose(-1, -2) for key in keys], dim=-1)
    if bias is not None:
        weights = weights + bias
    weights = weights.masked_fill(~visible, MASKED_SCORE)
    weights = weights.softmax(dim=-1)
    if others is None:
        return weights @ near[1]
    count = near[0].shape[-2]
    return weights[..., :count] @ near[1] + weights[..., count:] @ others[1]
