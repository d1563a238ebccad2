"""From the vectors of a text's tokens to one vector of the text.

Source: Reimers & Gurevych 2019, "Sentence-BERT", §3 (arXiv 1908.10084); the modes and their order
are those of `sentence_transformers`' `Pooling`.

Legend: B batch, T positions, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import torch
from torch import Tensor, nn
from torch.nn import functional

from export.layers.scores import within


class PoolingMode(StrEnum):
    """How token vectors become one; several are concatenated in this order."""

    CLS = "cls"
    MAX = "max"
    MEAN = "mean"
    MEAN_SQRT_LEN = "mean_sqrt_len"
    WEIGHTED_MEAN = "weighted_mean"
    LAST = "last"


class Pooling(nn.Module):
    """Token vectors and lengths → one vector a text; padding has no part in it.

    Args:
        modes: In any order.
        is_normalized: Whether vectors get unit length.
    """

    def __init__(
        self, modes: tuple[PoolingMode, ...] = (PoolingMode.MEAN,), *, is_normalized: bool = True
    ) -> None:
        super().__init__()
        self.modes = tuple(mode for mode in PoolingMode if mode in modes)
        self.is_normalized = is_normalized

    def output_width(self, width: int) -> int:
        """D', given D."""
        return width * len(self.modes)

    def forward(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """(B, T, D), (B,) → (B, D'), D' = modes · D."""
        parts = [POOLED[mode](hidden, lengths) for mode in self.modes]
        pooled = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
        return functional.normalize(pooled, dim=-1) if self.is_normalized else pooled


def first(hidden: Tensor, lengths: Tensor) -> Tensor:
    """(B, D): the first token's vector."""
    return hidden[:, 0]


def last(hidden: Tensor, lengths: Tensor) -> Tensor:
    """(B, D): the last token's vector."""
    index = (lengths.long() - 1)[:, None, None].expand(-1, 1, hidden.shape[-1])
    return hidden.gather(1, index).squeeze(1)


def _largest(hidden: Tensor, lengths: Tensor) -> Tensor:
    inside = within(lengths, hidden.shape[1])[..., None]
    return hidden.masked_fill(~inside, float("-inf")).amax(dim=1)


def mean(hidden: Tensor, lengths: Tensor) -> Tensor:
    """(B, D): the mean of the tokens' vectors."""
    return _sum(hidden, within(lengths, hidden.shape[1]).float()) / lengths[:, None]


def _mean_sqrt_len(hidden: Tensor, lengths: Tensor) -> Tensor:
    inside = within(lengths, hidden.shape[1]).float()
    return _sum(hidden, inside) / lengths[:, None].float().sqrt()


def _weighted_mean(hidden: Tensor, lengths: Tensor) -> Tensor:
    """Later tokens weigh more: 1, 2, 3, … (Muennighoff 2022, "SGPT", §3.1, arXiv 2202.08904)."""
    ranks = torch.arange(1, hidden.shape[1] + 1, device=hidden.device)
    weights = torch.where(within(lengths, hidden.shape[1]), ranks, 0).float()
    return _sum(hidden, weights) / weights.sum(dim=1, keepdim=True)


def _sum(hidden: Tensor, weights: Tensor) -> Tensor:
    """(B, T, D), (B, T) → (B, D) in one pass over the vectors."""
    return (weights[:, None] @ hidden).squeeze(1)


POOLED: dict[PoolingMode, Callable[[Tensor, Tensor], Tensor]] = {
    PoolingMode.CLS: first,
    PoolingMode.MAX: _largest,
    PoolingMode.MEAN: mean,
    PoolingMode.MEAN_SQRT_LEN: _mean_sqrt_len,
    PoolingMode.WEIGHTED_MEAN: _weighted_mean,
    PoolingMode.LAST: last,
}
