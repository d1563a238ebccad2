"""Attention between arrays of different widths: inputs → latents → latents → outputs.

Jaegle et al. 2021, "Perceiver", §3.1 (arXiv 2103.03206), and "Perceiver IO", §3 (arXiv 2107.14795).

Legend: B batch, N queries, S keys, D width of the queries, E width of the keys' array, H heads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from export.layers.attention.attention import Attention
from export.layers.attention.heads import Heads
from export.layers.blocks import MLP


@dataclass(frozen=True)
class LatentShape:
    """Widths of one layer.

    Attributes:
        width: D.
        source_width: E.
        key_width: Of all heads' queries, and of their keys.
        value_width: Of all heads' values.
        inner_width: Of the MLP.
        has_residual: Whether the queries' array is added to what attention returns.
    """

    width: int
    source_width: int
    heads: int
    key_width: int
    value_width: int
    inner_width: int
    activation: str
    has_residual: bool = True


class LatentAttention(Attention):
    """Queries of one array attend to another; values may be wider or narrower than keys."""

    def __init__(self, shape: LatentShape) -> None:
        head_width = shape.key_width // shape.heads
        super().__init__(Heads(shape.width, shape.heads, head_width=head_width))
        self.key = nn.Linear(shape.source_width, shape.key_width)
        self.value = nn.Linear(shape.source_width, shape.value_width)
        self.out = nn.Linear(shape.value_width, shape.width)

    def forward(self, x: Tensor, source: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(B or 1, N, D), (B, S, E) → (B, N, D).

        Args:
            x: One row where all rows of the batch have the same queries.
            lengths: (B,) int32, positions of the source that are no padding.
        """
        query = self.query(x).expand(source.shape[0], -1, -1)
        return self.out(self.mix(query, self.key(source), self.value(source), lengths))


class LatentLayer(nn.Module):
    """Attention and MLP, norms in front of both.

    Args:
        is_cross: Whether the source is an array of its own, with its own norm, not `x` itself.
    """

    def __init__(self, shape: LatentShape, *, is_cross: bool) -> None:
        super().__init__()
        self.has_residual = shape.has_residual
        self.attention_norm = nn.LayerNorm(shape.width)
        if is_cross:
            self.source_norm = nn.LayerNorm(shape.source_width)
        self.attention = LatentAttention(shape)
        self.mlp_norm = nn.LayerNorm(shape.width)
        self.mlp = MLP(shape.width, shape.inner_width, shape.activation)

    def forward(
        self, x: Tensor, source: Tensor | None = None, lengths: Tensor | None = None
    ) -> Tensor:
        """(B or 1, N, D), (B, S, E) → (B, N, D); without a source, `x` attends to itself."""
        query = self.attention_norm(x)
        read = query if source is None else self.source_norm(source)
        attended = self.attention(query, read, lengths)
        x = x + attended if self.has_residual else attended
        return x + self.mlp(self.mlp_norm(x))


class LatentArray(nn.Module):
    """Latent vectors that read the inputs once and then attend to each other.

    Args:
        count: N.
        read: Of the layer whose keys and values are the inputs.
        process: Of the layers between latents.
        layers: Number of the latter.
        repeats: Times that all of them are applied, with the same weights.
    """

    def __init__(
        self, count: int, read: LatentShape, process: LatentShape, *, layers: int, repeats: int
    ) -> None:
        super().__init__()
        self.repeats = repeats
        self.latents = nn.Parameter(torch.zeros(count, read.width))
        self.read = LatentLayer(read, is_cross=True)
        self.process = nn.ModuleList(LatentLayer(process, is_cross=False) for _ in range(layers))

    def forward(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(B, S, E), (B,) → (B, N, D)."""
        x = self.read(self.latents[None], inputs, lengths)
        for _ in range(self.repeats):
            for layer in self.process:
                x = layer(x)
        return x


class OneQuery(nn.Module):
    """A learned query that reads one vector out of the latents: (B, N, D) → (B, D)."""

    def __init__(self, shape: LatentShape) -> None:
        super().__init__()
        self.width = shape.width
        self.query = nn.Parameter(torch.zeros(1, shape.width))
        self.layer = LatentLayer(shape, is_cross=True)

    def forward(self, latents: Tensor, lengths: Tensor | None = None) -> Tensor:
        """`lengths` are the inputs' and do not concern the latents."""
        return self.layer(self.query[None], latents).squeeze(1)
