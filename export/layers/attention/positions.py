"""Tables of positions as a layer, and sinusoids in the three forms that checkpoints have."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def sinusoids(positions: int, width: int) -> Tensor:
    """Sines of all frequencies, then cosines: (positions, width).

    Vaswani et al. 2017, §3.5 (arXiv 1706.03762), which alternates them.
    """
    frequency = 10000 ** (-2 * torch.arange((width + 1) // 2, dtype=torch.float64) / width)
    angle = torch.arange(positions, dtype=torch.float64)[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()[:, : width // 2]], dim=1).float()


def interleaved_sinusoids(positions: int, width: int) -> Tensor:
    """Sine and cosine of each frequency side by side, as in the paper: (positions, width)."""
    table = sinusoids(positions, width)
    half = (width + 1) // 2
    mixed = torch.empty_like(table)
    mixed[:, 0::2], mixed[:, 1::2] = table[:, :half], table[:, half:]
    return mixed


def spread_sinusoids(positions: int, width: int) -> Tensor:
    """The same with frequencies from 1 down to exactly 1 / 10000, as in tensor2tensor and fairseq.

    An odd width ends with a column of zeros. In float32, as the checkpoints were trained.
    """
    half = width // 2
    frequency = torch.exp(torch.arange(half).float() * -(math.log(10000) / (half - 1)))
    angle = torch.arange(positions).float()[:, None] * frequency
    table = torch.cat([angle.sin(), angle.cos()], dim=1)
    return torch.nn.functional.pad(table, (0, width % 2))


class PositionTable(nn.Module):
    """Vectors of positions; learned ones are a parameter.

    Args:
        table: (rows, D).
        offset: Row of position 0.
        padding: Token whose position is zero, wherever it stands; no file has such a table.
    """

    def __init__(self, table: Tensor, offset: int = 0, padding: int | None = None) -> None:
        super().__init__()
        self.table: Tensor
        if isinstance(table, nn.Parameter):
            self.table = table
        else:
            self.register_buffer("table", table, persistent=padding is None)
        self.offset = offset
        self.padding = padding

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """(B, T) tokens at (B or 1, T) positions → (B or 1, T, D)."""
        # The padding of a ragged prefill may lie beyond the table.
        rows = (positions + self.offset).clamp(max=self.table.shape[0] - 1)
        if self.padding is not None:
            rows = torch.where(tokens == self.padding, self.padding, rows)
        return self.table[rows]
