"""From the vectors of a text's tokens to one vector of the text.

Source: Reimers & Gurevych 2019, "Sentence-BERT", §3 (arXiv 1908.10084); the modes are those of
`sentence_transformers`' `Pooling`.

Legend: B batch, T positions, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum

import torch
from torch import Tensor, nn
from torch.nn import functional

from export.layers.activation import Activation
from export.layers.attention.attention import within


class PoolingMode(StrEnum):
    """How token vectors become one."""

    CLS = "cls"
    MAX = "max"
    MEAN = "mean"
    MEAN_SQRT_LEN = "mean_sqrt_len"
    WEIGHTED_MEAN = "weighted_mean"
    LAST = "last"


class Projection(nn.Module):
    """A linear layer and its activation behind the pooling."""

    def __init__(self, width: int, output_width: int, activation: Activation, bias: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(width, output_width, bias=bias)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """(B, D) → (B, D')."""
        return self.activation(self.linear(x))


class UnitLength(nn.Module):
    """Vectors of length one."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, D) → (B, D)."""
        return functional.normalize(x, dim=-1)


class Pooling(nn.Module):
    """Token vectors and lengths → one vector a text; padding has no part in it.

    Args:
        modes: Concatenated in this order.
        layers: What follows; normalisation when not given.
    """

    def __init__(
        self,
        modes: tuple[PoolingMode, ...] = (PoolingMode.MEAN,),
        layers: Sequence[nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.modes = modes
        self.layers = nn.Sequential(*([UnitLength()] if layers is None else layers))

    @property
    def is_normalized(self) -> bool:
        """Whether vectors have unit length."""
        return len(self.layers) > 0 and isinstance(self.layers[-1], UnitLength)

    @property
    def reads_first(self) -> bool:
        """Whether the first token's vector is enough."""
        return self.modes == (PoolingMode.CLS,)

    def output_width(self, width: int) -> int:
        """D', given D."""
        widths = [
            layer.linear.out_features for layer in self.layers if isinstance(layer, Projection)
        ]
        return widths[-1] if widths else width * len(self.modes)

    def forward(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """(B, T, D), (B,) → (B, D')."""
        parts = [POOLED[mode](hidden, lengths) for mode in self.modes]
        return self.layers(parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1))


def first(hidden: Tensor, lengths: Tensor) -> Tensor:
    """(B, D): the first token's vector."""
    return hidden[:, 0]


def last(hidden: Tensor, lengths: Tensor) -> Tensor:
    """(B, D): the last token's vector."""
    index = (lengths.long() - 1)[:, None, None].expand(-1, 1, hidden.shape[-1])
    return hidden.gather(1, index).squeeze(1)


def final_states(hidden: Tensor, lengths: Tensor, *, is_bidirectional: bool) -> Tensor:
    """(B, D): what each direction of a recurrence ends in; both have half of the width."""
    if not is_bidirectional:
        return last(hidden, lengths)
    rightward, leftward = hidden.chunk(2, dim=-1)
    return torch.cat([last(rightward, lengths), leftward[:, 0]], dim=-1)


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
