"""Shape of an attention layer, and where the new positions of a decoder's rows lie."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from export.config.config_reader import key
from export.layers.attention.rotary import Rotary

KeyValue = tuple[Tensor, Tensor]
"""Keys and values, each (B, G, S, K)."""

CACHE_ALIGNMENT = 8  # GroupQueryAttention takes head widths that are multiples of eight


@dataclass(frozen=True)
class Heads:
    """Shape of an attention layer, and how it turns query · key into scores."""

    model_width: int = key("hidden_size")
    count: int = key("num_attention_heads", kind="heads")
    """H: query heads."""
    bias: bool = True
    """Whether query, key and value have a bias."""
    scale: float | None = None
    """What query · key is multiplied by; K^-0.5 when not given."""
    key_value_count: int | None = None
    """G: heads of keys and values, shared by H / G query heads each (Ainslie et al. 2023, "GQA",
    arXiv 2305.13245); H when not given."""
    head_width: int | None = None
    """K; D / H when not given."""
    out_bias: bool = True
    """Whether the output projection has a bias."""
    rotary: Rotary | None = None
    """Positions as rotations of queries and keys."""
    soft_cap: float | None = None
    """Scores s become c · tanh(s / c) (Gemma Team 2024, "Gemma 2", §2, arXiv 2408.00118)."""
    window: int | None = None
    """A position attends to at most so many: itself and those before it; in an encoder, to those
    nearer than that on either side (Beltagy et al. 2020, "Longformer", arXiv 2004.05150)."""

    is_prefix_lm: bool = False
    """Of a decoder: the positions of a row's first call, which holds its prompt, attend to each
    other in both directions, whatever the window; what follows is causal (Raffel et al. 2020,
    "T5", §3.2.1, arXiv 1910.10683; D104)."""

    @property
    def width(self) -> int:
        """K."""
        return self.head_width or self.model_width // self.count

    @property
    def groups(self) -> int:
        """G."""
        return self.key_value_count or self.count

    @property
    def cache_width(self) -> int:
        """K as the cache holds it: rounded up for the operator, the rest zeros."""
        return -(-self.width // CACHE_ALIGNMENT) * CACHE_ALIGNMENT

    @property
    def score_scale(self) -> float:
        """The scale that applies."""
        return self.width**-0.5 if self.scale is None else self.scale


@dataclass(frozen=True)
class Rows:
    """Where the new positions of a step lie: the engine's LENGTHS, TOTAL and LAST."""

    lengths: Tensor
    """(R,) int32: row length after this call."""
    total: Tensor
    """() int32: the largest of them."""
    last: Tensor
    """(R,) int64: index in T of each row's last real token."""
    blocks: Tensor | None = None
    """(R, T) int64: new positions of one number above 0 attend to each other in both directions.
    Only a row's first call has any. None: all is causal."""
    axes: Tensor | None = None
    """(A, R, T) int64: by which queries and keys are rotated, where that is not a token's place."""

    def rotations(self, new: int) -> Tensor:
        """What queries and keys are rotated by: `axes`, or the positions (R, T)."""
        return self.positions(new) if self.axes is None else self.axes

    def positions(self, new: int) -> Tensor:
        """(R, T) int64: each new token's place in its row, padding counted on."""
        start = self.lengths.long() - self.last - 1
        return start[:, None] + torch.arange(new, device=start.device)[None]

    @property
    def is_first(self) -> Tensor:
        """(R,) bool: whether this is a row's first call."""
        return self.lengths.long() - self.last - 1 == 0
