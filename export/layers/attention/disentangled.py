"""Attention that keeps the contents of tokens and their distances apart.

Paper: He et al. 2020, "DeBERTa: Decoding-enhanced BERT with Disentangled Attention", §3 (arXiv
2006.03654).

Legend: B batch, T positions, H heads, K width of a head, D width, S buckets of distances to one
side.

Vectors of distances do not depend on the input, so their keys and queries are computed at export.
Scores are computed by distance, 2·T - 1 of them a token instead of 2·S, and shifted into place.
Their sum is a bias of the fused attention.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.onnx import is_in_onnx_export

from export.layers.attention.attention import SelfAttention
from export.layers.attention.heads import Heads
from export.layers.attention.positions import by_distance


@dataclass(frozen=True)
class Distances:
    """The relative part of the attention (§3.1).

    Attributes:
        span: S.
        buckets: Whether far distances share buckets, in logarithmic steps.
        farthest: Distances from here on share the last bucket.
        content_to_position: Whether tokens attend to distances (c2p).
        position_to_content: Whether distances attend to tokens (p2c).
        shares_projections: Whether distances are projected as contents are (v3).
        is_normalised: Whether their vectors are normalised.
    """

    span: int
    buckets: bool
    farthest: int
    content_to_position: bool
    position_to_content: bool
    shares_projections: bool
    is_normalised: bool


class DistanceTable(nn.Module):
    """A vector for each bucket of distances; all layers share them."""

    bucket: Tensor

    def __init__(
        self, distances: Distances, *, width: int, positions: int, norm_epsilon: float
    ) -> None:
        super().__init__()
        self.distances = distances
        self.table = nn.Embedding(2 * distances.span, width)
        if distances.is_normalised:
            self.norm = nn.LayerNorm(width, eps=norm_epsilon)
        self.positions = positions
        apart = torch.arange(1 - positions, positions)
        self.register_buffer("bucket", self.buckets(apart), persistent=False)

    def buckets(self, distance: Tensor) -> Tensor:
        """Query's position minus key's → row of the table, the same shape."""
        span = self.distances.span
        if self.distances.buckets:
            distance = self._logarithmic(distance)
        return (distance + span).clamp(0, 2 * span - 1)

    def _logarithmic(self, distance: Tensor) -> Tensor:
        """Distances of up to S / 2 have their own bucket; farther ones share (§3 of v2's notes)."""
        near = self.distances.span // 2
        far = distance.abs().clamp(min=near)
        octaves = (far / near).log() / torch.tensor((self.distances.farthest - 1) / near).log()
        shared = ((octaves * (near - 1)).ceil() + near).long() * distance.sign()
        return torch.where(distance.abs() <= near, distance, shared)

    def vectors(self) -> Tensor:
        """(2·S, D)."""
        weight = self.table.weight
        return self.norm(weight) if self.distances.is_normalised else weight

    def rows(self, size: int) -> Tensor:
        """(2·T - 1,) rows of the distances -(T - 1) … T - 1."""
        return self.bucket[self.positions - size : self.positions + size - 1]


class DisentangledAttention(SelfAttention):
    """Scores of contents, of contents and distances, and of distances and contents (equation 4)."""

    packed_key: Tensor
    packed_query: Tensor

    def __init__(self, heads: Heads, table: DistanceTable) -> None:
        super().__init__(heads)
        self.table = table
        self.distances = table.distances
        if not self.distances.shares_projections:
            width = heads.model_width
            if self.distances.content_to_position:
                self.position_key = nn.Linear(width, width)
            if self.distances.position_to_content:
                self.position_query = nn.Linear(width, width)

    def forward(
        self, x: Tensor, lengths: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """(B, T, D) → (B, T, D)."""
        query, key, value = self.query(x), self.key(x), self.value(x)
        scores = self.relative_scores(self.split(query), self.split(key))
        return self.out(self.mix(query, key, value, lengths, scores))

    def relative_scores(self, query: Tensor, key: Tensor) -> Tensor | None:
        """Scaled c2p and p2c scores, (B, H, T, T)."""
        rows = self.table.rows(query.shape[2])
        scores: Tensor | None = None
        if self.distances.content_to_position:
            keys = self._by_head(self._position_keys()[rows.flip(0)])  # key minus query ascends
            scores = by_distance(self.heads.score_scale * query @ keys)
        if self.distances.position_to_content:
            queries = self._by_head(self._position_queries()[rows])
            tokens = by_distance(self.heads.score_scale * key @ queries).transpose(-1, -2)
            scores = tokens if scores is None else scores + tokens
        return scores

    def pack(self) -> None:
        """Computes what no input changes; called once before export."""
        if self.distances.content_to_position:
            keys = self._position_keys().detach()
            self.register_buffer("packed_key", keys, persistent=False)
        if self.distances.position_to_content:
            queries = self._position_queries().detach()
            self.register_buffer("packed_query", queries, persistent=False)

    def _position_keys(self) -> Tensor:
        """(2·S, H·K)."""
        if is_in_onnx_export():
            return self.packed_key
        shares = self.distances.shares_projections
        return (self.key if shares else self.position_key)(self.table.vectors())

    def _position_queries(self) -> Tensor:
        """(2·S, H·K)."""
        if is_in_onnx_export():
            return self.packed_query
        shares = self.distances.shares_projections
        return (self.query if shares else self.position_query)(self.table.vectors())

    def _by_head(self, vectors: Tensor) -> Tensor:
        """(2·T - 1, H·K) → (H, K, 2·T - 1)."""
        return vectors.unflatten(-1, (-1, self.heads.width)).permute(1, 2, 0)
