"""Attention over a grid with a learned bias for each distance, and fewer queries where it shrinks.

Paper: Graham et al. 2021, "LeViT", §4.2 (arXiv 2104.01136).

Legend: B batch, r rows and columns of the grid, N = r² patches, Q queries, H heads, K width of keys
and queries, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from export.layers.images.batch_norm import NormedLinear


def bias_index(grid: int, stride: int) -> list[list[int]]:
    """Column of the table of biases for each query and key, (Q, N).

    Distances are numbered in the order in which they first occur (§4.2, attention bias).
    """
    numbers: dict[tuple[int, int], int] = {}
    queries, keys = range(0, grid, stride), range(grid)
    return [
        [numbers.setdefault((abs(a - c), abs(b - d)), len(numbers)) for c in keys for d in keys]
        for a in queries
        for b in queries
    ]


class DistanceAttention(nn.Module):
    """Attention with a learned bias for each distance, and Hardswish in front of its output.

    Args:
        widths: D of the input and of the output.
        grid: r of the input.
        stride: Of the queries in the grid: 1, or more between two stages (§4.2).
    """

    index: Tensor

    def __init__(
        self, widths: tuple[int, int], heads: tuple[int, int, int], grid: int, stride: int = 1
    ) -> None:
        super().__init__()
        self.count, self.key_width, ratio = heads
        self.value_width = ratio * self.key_width
        self.grid, self.stride = grid, stride
        inner, outer = widths
        queries, values = self.count * self.key_width, self.count * self.value_width
        self.queries: NormedLinear | None = None
        if stride == 1:
            self.projection = NormedLinear(inner, 2 * queries + values)  # of each head q, k, v
        else:
            self.queries = NormedLinear(inner, queries)
            self.projection = NormedLinear(inner, queries + values)
        self.out = NormedLinear(values, outer)
        index = bias_index(grid, stride)
        self.register_buffer("index", torch.tensor(index), persistent=False)
        self.biases = nn.Parameter(torch.zeros(self.count, max(map(max, index)) + 1))

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) → (B, Q, D')."""
        query, key, value = self._project(x)
        scores = query @ key.transpose(-1, -2) * self.key_width**-0.5 + self.biases[:, self.index]
        mixed = (scores.softmax(dim=-1) @ value).transpose(1, 2).flatten(2)
        return self.out(functional.hardswish(mixed))

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, H, Q, K), (B, H, N, K) and (B, H, N, value width)."""
        heads = self.projection(x).unflatten(2, (self.count, -1)).transpose(1, 2)
        keys = [self.key_width, self.value_width]
        if self.queries is None:
            query, key, value = heads.split([self.key_width, *keys], dim=-1)
            return query, key, value
        kept = x.unflatten(1, (self.grid, self.grid))[:, :: self.stride, :: self.stride]
        query = self.queries(kept.flatten(1, 2)).unflatten(2, (self.count, -1)).transpose(1, 2)
        key, value = heads.split(keys, dim=-1)
        return query, key, value
