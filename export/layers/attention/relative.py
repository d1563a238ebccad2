"""Relative positions as a bias of attention scores (Raffel et al. 2020, "T5", §2.1, 1910.10683).

Distances fall into buckets: near ones have one each, far ones share, in logarithmic steps. A graph
looks a distance up in a table that PyTorch computed: at a boundary such as 16, another library's
logarithm can round to the next bucket.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


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
