"""Attention by a small network over annotations (Bahdanau et al. 2015 §3.1, arXiv 1409.0473).

Soft attention of Xu et al. 2015 (arXiv 1502.03044 §4.2) is the same function over image features.

Legend: B sequences, R rows (B x beams), S annotations, D width of an annotation, A width of the
network, Q width of a decoder state.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from export.layers.attention.attention import within


class AdditiveAttention(nn.Module):
    """e = vᵀ tanh(W query + U annotation + b), weights = softmax(e)."""

    def __init__(self, query_width: int, annotation_width: int, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(query_width, width, bias=False)
        self.key = nn.Linear(annotation_width, width)
        self.score = nn.Linear(width, 1, bias=False)

    def project_keys(self, annotations: Tensor) -> Tensor:
        """(B, S, D) → the annotations' share of the sum, (B, S, A), the same at every step."""
        return self.key(annotations)

    def forward(
        self, query: Tensor, keys: Tensor, annotations: Tensor, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """(R, Q) → contexts (R, D) and weights (R, S); beams of one sequence share its annotations.

        Args:
            lengths: (B,) int32, annotations that are no padding.
        """
        beams = self.query(query).reshape(keys.shape[0], -1, 1, keys.shape[-1])  # (B, W, 1, A)
        scores = self.score(torch.tanh(beams + keys[:, None])).squeeze(-1)  # (B, W, S)
        if lengths is not None:
            scores = scores.masked_fill(~within(lengths, keys.shape[1])[:, None], float("-inf"))
        weights = scores.softmax(dim=-1)
        contexts = weights.to(annotations.dtype) @ annotations  # (B, W, D)
        return contexts.flatten(0, 1), weights.flatten(0, 1)
