"""Attention to a few points of several grids, which each query chooses itself.

Paper: Zhu et al. 2020, "Deformable DETR", §4.1 (arXiv 2010.04159).

Legend: B batch, N queries, S vectors of all grids, L grids, P points in each, H heads, K width of a
head, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from export.layers.attention.windows import Grid


class DeformableAttention(nn.Module):
    """A weighted sum of values at H·L·P points around a query's place, between four pixels each."""

    def __init__(self, width: int, heads: int, grids: int, points: int) -> None:
        super().__init__()
        self.shape = heads, grids, points
        self.offsets = nn.Linear(width, heads * grids * points * 2)
        self.weights = nn.Linear(width, heads * grids * points)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(
        self, query: Tensor, places: Tensor, source: Tensor, grids: Sequence[Grid]
    ) -> Tensor:
        """(B, N, D) → (B, N, D).

        Args:
            places: (1 or B, N, 2), centres x and y in parts of the image: offsets are in pixels of
                a grid. Or (1 or B, N, 4), with width and height, of which offsets are parts.
            source: (B, S, D), the grids' vectors one after the other, row by row.
            grids: Rows and columns of each.
        """
        heads, levels, points = self.shape
        offsets = self.offsets(query).unflatten(-1, (heads, levels, points, 2)).transpose(1, 2)
        weights = self.weights(query).unflatten(-1, (heads, -1)).softmax(dim=-1)
        weights = weights.transpose(1, 2).flatten(0, 1)[:, None]  # (B·H, 1, N, L·P)
        places = places[:, None, :, None, None]
        if places.shape[-1] == 2:
            sizes = torch.tensor([[columns, rows] for rows, columns in grids])
            offsets = offsets / sizes[:, None]
        else:
            offsets = offsets / points * places[..., 2:] * 0.5
        sampled_at = (2 * (places[..., :2] + offsets) - 1).flatten(0, 1)  # (B·H, N, L, P, 2)
        values = self.value(source).transpose(1, 2).unflatten(1, (heads, -1)).flatten(0, 1)
        mixed: Tensor | None = None
        start = 0
        for level, (rows, columns) in enumerate(grids):
            sampled = functional.grid_sample(
                values[:, :, start : start + rows * columns].unflatten(2, (rows, columns)),
                sampled_at[:, :, level],
                mode="bilinear",
                padding_mode="zeros",
                align_corners=False,
            )  # (B·H, K, N, P)
            part = (sampled * weights[..., level * points : (level + 1) * points]).sum(dim=-1)
            mixed = part if mixed is None else mixed + part
            start = start + rows * columns
        assert mixed is not None
        return self.out(mixed.unflatten(0, (-1, heads)).flatten(1, 2).transpose(1, 2))
