"""Attention of an image's patches whose queries and keys rotate by rows and columns.

Paper: Wang et al. 2024, "Qwen2-VL", §2.1 (arXiv 2409.12191): one half of a head's pairs rotates by
a patch's row, the other by its column.

Legend: B images of one size, M rows and columns of a square's patches, N patches, H heads, K width
of a head, E width of the tower.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from export.layers.attention.attention import Attention, attend
from export.layers.attention.fused import multi_head_attention
from export.layers.attention.rotary import turn_halves
from export.layers.blocks import MakeNorm

Angles = tuple[Tensor, Tensor]
"""Cosines and sines, (1 or B, 1, N, K / 2) each."""


def axial_angles(rows: int, columns: int, merge: int, width: int, base: float) -> Angles:
    """Of an image whose patches follow each other square by square.

    Args:
        rows: Of squares, like `columns`.
        merge: M.
        width: K.
        base: Of the frequencies.
    """
    exponents = torch.arange(0, width // 2, 2, dtype=torch.float32) / (width // 2)
    frequencies = 1.0 / base**exponents  # (K / 4,)
    of_row = torch.arange(rows * merge).float()[:, None] * frequencies
    of_column = torch.arange(columns * merge).float()[:, None] * frequencies
    shape = (rows, columns, merge, merge, len(frequencies))
    by_row = of_row.reshape(rows, 1, merge, 1, -1).expand(shape)
    by_column = of_column.reshape(1, columns, 1, merge, -1).expand(shape)
    both = torch.cat([by_row, by_column], dim=-1).flatten(0, 3)[None, None]
    return both.cos(), both.sin()


class PatchAttention(Attention):
    """Every patch attends to every other; queries and keys rotate by rows and columns."""

    def forward(self, x: Tensor, angles: Angles, bias: Tensor | None = None) -> Tensor:
        """(B, N, E) → (B, N, E).

        Args:
            bias: Of the scores, (B, 1, N, N).
        """
        query, key = (turn_halves(self.split(part(x)), *angles) for part in (self.query, self.key))
        value = self.value(x)
        if self.is_fused:
            query, key = self.join(query), self.join(key)
            return self.out(multi_head_attention(self.heads, query, key, value, None, bias))
        return self.out(self.join(attend(self.heads, query, key, self.split(value), None, bias)))


class PatchBlock(nn.Module):
    """Attention and MLP, behind norms."""

    def __init__(self, attention: PatchAttention, mlp: nn.Module, norm: MakeNorm) -> None:
        super().__init__()
        self.attention = attention
        self.attention_norm = norm()
        self.mlp = mlp
        self.mlp_norm = norm()

    def forward(self, x: Tensor, angles: Angles) -> Tensor:
        """(B, N, E) → (B, N, E)."""
        return self.finish(x + self.attention(self.attention_norm(x), angles))

    def finish(self, x: Tensor) -> Tensor:
        """The second sub-layer."""
        return x + self.mlp(self.mlp_norm(x))
