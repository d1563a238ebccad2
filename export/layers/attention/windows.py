"""Attention inside windows of a grid, or with a bias for each distance on it.

Papers: Liu et al. 2021, "Swin Transformer", §3.2 (arXiv 2103.14030); Graham et al. 2021, "LeViT",
§4.2 (arXiv 2104.01136).

Legend: B batch, h x w grid of patches, W windows of an image, M window side; r rows and columns of
LeViT's grid, N = r² patches, Q queries; H heads, K width of keys and queries, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from export.layers.attention.attention import SelfAttention
from export.layers.attention.heads import Heads
from export.layers.images.convolutions import NormedLinear

MASKED = -100.0
"""Added to scores across a shifted window's seams, as in the published code."""

Grid = tuple[int, int]
"""Rows and columns."""


def pad_grid(x: Tensor, multiple: Grid) -> Tensor:
    """(B, h, w, D) with zeros below and to the right, up to multiples of two numbers.

    While a graph with images of any size is traced, h and w are symbols: what is divided by M again
    is written as M times a number, and ONNX rounds a negative quotient up.
    """
    height, width = (
        (size + each - 1) // each * each for size, each in zip(x.shape[1:3], multiple, strict=True)
    )
    below, right = height - x.shape[1], width - x.shape[2]
    if isinstance(below, int) and isinstance(right, int) and not (below or right):
        return x
    return functional.pad(x, (0, 0, 0, right, 0, below))


def partition(x: Tensor, side: int) -> Tensor:
    """(B, h, w, D) → the windows row by row, (B·W, M·M, D)."""
    x = x.unflatten(2, (-1, side)).unflatten(1, (-1, side))  # (B, h/M, M, w/M, M, D)
    return x.transpose(2, 3).flatten(3, 4).flatten(0, 2)


def merge(windows: Tensor, side: int, grid: Grid) -> Tensor:
    """(B·W, M·M, D) → (B, h, w, D): what `partition` took apart."""
    rows, columns = grid[0] // side, grid[1] // side
    x = windows.unflatten(0, (-1, rows, columns)).unflatten(3, (side, side))
    return x.transpose(2, 3).flatten(3, 4).flatten(1, 2)


def seams(grid: Grid, side: int, shift: int) -> Tensor:
    """The mask of shifted windows, (W, M·M, M·M): patches that are no neighbours (§3.2)."""
    axes = []
    for size in grid:
        place = torch.arange(size)
        regions = (place >= size - side).int() + (place >= size - shift).int()
        axes.append(regions.unflatten(0, (size // side, side)))
    rows, columns = axes[0][:, None, :, None], axes[1][:, None]
    windows = (3 * rows + columns).flatten(2).flatten(0, 1)  # (W, M·M): nine regions
    return torch.where(windows[:, None] == windows[:, :, None], 0.0, MASKED)


def relative_index(side: int) -> Tensor:
    """Row of the table of biases for each pair of a window's patches, (M·M, M·M)."""
    place = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij"))
    offset = place.flatten(1)[:, :, None] - place.flatten(1)[:, None] + side - 1  # (2, M·M, M·M)
    return (2 * side - 1) * offset[0] + offset[1]


class WindowAttention(nn.Module):
    """Attention inside windows, with a learned bias for each relative position (§3.2)."""

    index: Tensor
    mask: Tensor

    def __init__(self, heads: Heads, side: int) -> None:
        super().__init__()
        self.side = side
        self.shift = 0
        self.attention = SelfAttention(heads)
        self.table = nn.Parameter(torch.zeros((2 * side - 1) ** 2, heads.count))
        self.register_buffer("index", relative_index(side), persistent=False)
        self.register_buffer("mask", torch.zeros(1, 1, 1), persistent=False)

    def prepare(self, grid: Grid, shift: int) -> None:
        """Sets shift and mask for a grid, which has no less than M rows and columns."""
        side = self.side
        self.shift = 0 if min(grid) == side else shift
        whole = grid[0] + -grid[0] % side, grid[1] + -grid[1] % side
        self.mask = seams(whole, side, self.shift) if self.shift else torch.zeros(1, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, h, w, D) → (B, h, w, D)."""
        height, width = x.shape[1:3]
        x = pad_grid(x, (self.side, self.side))
        whole = x.shape[1], x.shape[2]
        x = x.roll((-self.shift, -self.shift), dims=(1, 2)) if self.shift else x
        windows = partition(x, self.side)
        bias = self.biases()
        if self.shift:
            masks = self._seams(whole)[:, None].repeat(x.shape[0], 1, 1, 1)  # (B·W, 1, M·M, M·M)
            bias = bias + masks
        x = merge(self.attention(windows, bias=bias), self.side, whole)
        x = x.roll((self.shift, self.shift), dims=(1, 2)) if self.shift else x
        return x[:, :height, :width]

    def biases(self) -> Tensor:
        """What is added to the scores of a window, (1, H, M·M, M·M)."""
        return self.table[self.index].permute(2, 0, 1)[None]

    def _seams(self, grid: Grid) -> Tensor:
        """The mask of a padded grid, (W, M·M, M·M)."""
        return self.mask


class AnyGridWindows(WindowAttention):
    """The same for grids of any size; in a grid of one window it is shifted, too."""

    def prepare(self, grid: Grid, shift: int) -> None:
        """Sets the shift; the mask follows from each grid."""
        self.shift = shift

    def _seams(self, grid: Grid) -> Tensor:
        return seams(grid, self.side, self.shift)


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
