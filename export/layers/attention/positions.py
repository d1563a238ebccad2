"""Tables of positions, sinusoids, and relative positions as a bias of scores.

Distances fall into buckets: near ones have one each, far ones share, in logarithmic steps. A graph
looks a distance up in a table that PyTorch computed: at a boundary such as 16, another library's
logarithm can round to the next bucket.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


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


class RelativePositions(nn.Module):
    """A learned bias for each head and bucket of distances; layers of one stack share one.

    Args:
        farthest: Distances from here on share the last bucket.
        is_bidirectional: Half of the buckets are for keys behind the query (encoders).
    """

    table: Tensor
    """(2·farthest + 1, H): the bias of each distance; of a graph, see `pack`."""

    def __init__(self, heads: int, buckets: int, farthest: int, *, is_bidirectional: bool) -> None:
        super().__init__()
        self.buckets = buckets
        self.farthest = farthest
        self.is_bidirectional = is_bidirectional
        self.bias = nn.Embedding(buckets, heads)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Positions (R, T) of queries and (S,) of keys → (R, H, T, S)."""
        distance = keys - queries[..., None]
        if torch.onnx.is_in_onnx_export():
            index = distance.clamp(-self.farthest, self.farthest) + self.farthest
            return self.table[index].permute(0, 3, 1, 2)
        return self.bias(self.bucket(distance)).permute(0, 3, 1, 2)

    def pack(self) -> None:
        """Computes the bias of every distance; called once before export."""
        distances = torch.arange(-self.farthest, self.farthest + 1)
        table = self.bias(self.bucket(distances)).detach()
        self.register_buffer("table", table, persistent=False)

    def bucket(self, distance: Tensor) -> Tensor:
        """Key's position minus query's, int64 → bucket, the same shape."""
        buckets, ahead = self.buckets, torch.zeros_like(distance)
        if self.is_bidirectional:
            buckets //= 2
            ahead = (distance > 0).long() * buckets
            distance = distance.abs()
        else:
            distance = (-distance).clamp(min=0)
        exact = buckets // 2
        # the clamp keeps log away from 0, whose result `where` drops
        octaves = (distance.clamp(min=1).float() / exact).log() / math.log(self.farthest / exact)
        shared = exact + (octaves * (buckets - exact)).long()
        return ahead + torch.where(distance < exact, distance, shared.clamp(max=buckets - 1))


def by_distance(scores: Tensor) -> Tensor:
    """(…, T, 2·T - 1) → (…, T, T): from scores by distance to scores by position.

    Row i has the score of key j at j - i + T - 1: distances j - i from -(T - 1) to T - 1. The rows
    are shifted against each other by one more column each, which a change of shape does without an
    index (Dai et al. 2019, "Transformer-XL", appendix B, arXiv 1901.02860).
    """
    size = scores.shape[-2]
    rows = functional.pad(scores, (0, 1)).flatten(-2)  # 2·T columns a row
    shifted = rows[..., size - 1 : 2 * size * size - 1]
    return shifted.unflatten(-1, (size, 2 * size - 1))[..., :size]
