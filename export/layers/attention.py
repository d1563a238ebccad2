"""Multi-head attention (Vaswani 2017 §3.2, arXiv 1706.03762) in the three forms that models need.

Every form has one eager definition and lowers to one fused operator of ONNX Runtime when it is
exported (`docs/architecture.md`, D10). The operators are described in ONNX Runtime's
`docs/ContribOperators.md`.

Legend: B batch, R rows, T new positions, P past positions, S source positions, H heads, K width of
a head, D model width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.onnx import is_in_onnx_export, ops

KeyValue = tuple[Tensor, Tensor]
"""Keys and values, each (B, H, S, K)."""

MASKED_SCORE = -1e30  # the operator's own default of -1e4 can be reached by a trained model
CACHE_ALIGNMENT = 8  # GroupQueryAttention takes head widths that are multiples of eight


@dataclass(frozen=True)
class Heads:
    """Shape of an attention layer."""

    model_width: int
    count: int
    bias: bool = True
    scale: float | None = None
    """What query · key is multiplied by; K^-0.5 when not given."""

    @property
    def width(self) -> int:
        """K: the model's width shared out among the heads."""
        return self.model_width // self.count

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

    def positions(self, new: int) -> Tensor:
        """(R, T) int64: each new token's place in its row, padding counted on."""
        start = self.lengths.long() - self.last - 1
        return start[:, None] + torch.arange(new, device=start.device)[None]


def attend(
    query: Tensor, key: Tensor, value: Tensor, scale: float, visible: Tensor | None = None
) -> Tensor:
    """softmax(scale · query keyᵀ) value, eager: (B, H, T, K).

    Args:
        visible: bool, broadcast to (B, H, T, S): which keys a query may look at.
    """
    return attention_weights(query, key, scale, visible) @ value


def attention_weights(
    query: Tensor, key: Tensor, scale: float, visible: Tensor | None = None
) -> Tensor:
    """softmax(scale · query keyᵀ): (B, H, T, S), who looks how much at whom."""
    scores = scale * query @ key.transpose(-1, -2)
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    return scores.softmax(dim=-1)


def within(lengths: Tensor, size: int) -> Tensor:
    """(B, size) bool: which positions are no padding."""
    return torch.arange(size, device=lengths.device)[None] < lengths[:, None]


def fused_attention(
    heads: Heads,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Tensor | None = None,
    *,
    is_causal: bool = False,
) -> Tensor:
    """`com.microsoft.MultiHeadAttention`, for graphs only.

    Args:
        query: (B, T, D).
        key: (B, S, D) or, from a cache, (B, H, S, K).
        value: As key.
        lengths: (B,) int32, keys that are no padding.
    """
    mask = [] if lengths is None else [None, lengths]
    attributes = {
        "num_heads": heads.count,
        "scale": heads.score_scale,
        "mask_filter_value": MASKED_SCORE,
        "unidirectional": int(is_causal),
    }
    return ops.symbolic(
        "com.microsoft::MultiHeadAttention",
        [query, key, value, *mask],
        attributes,
        dtype=query.dtype,
        shape=query.shape,
        version=1,
    )


class Attention(nn.Module):
    """The four projections that the forms below share.

    Attributes:
        has_fused_form: Whether it is exported as a fused operator. Those do not tell the weights,
            so graphs that are asked for them keep to standard operators (`Lowering.is_fused`).
    """

    has_fused_form = True

    def __init__(self, heads: Heads) -> None:
        super().__init__()
        width = heads.model_width
        self.heads = heads
        self.query = nn.Linear(width, width, bias=heads.bias)
        self.key = nn.Linear(width, width, bias=heads.bias)
        self.value = nn.Linear(width, width, bias=heads.bias)
        self.out = nn.Linear(width, width)

    def split(self, x: Tensor) -> Tensor:
        """(B, T, D) → (B, H, T, K)."""
        batch, length, _ = x.shape
        return x.view(batch, length, self.heads.count, self.heads.width).transpose(1, 2)

    @property
    def is_fused(self) -> bool:
        """Whether this very call becomes a fused operator."""
        return self.has_fused_form and is_in_onnx_export()

    @staticmethod
    def join(x: Tensor) -> Tensor:
        """(B, H, T, K) → (B, T, H·K)."""
        return x.transpose(1, 2).flatten(2)


class SelfAttention(Attention):
    """Every position looks at every other (encoders), or only back (`is_causal`)."""

    def __init__(self, heads: Heads, *, is_causal: bool = False) -> None:
        super().__init__(heads)
        self.is_causal = is_causal

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(B, T, D) → (B, T, D).

        Args:
            lengths: (B,) int32, where the batch is padded on the right.
        """
        query, key, value = self.query(x), self.key(x), self.value(x)
        if self.is_fused:
            mixed = fused_attention(
                self.heads, query, key, value, lengths, is_causal=self.is_causal
            )
            return self.out(mixed)
        mixed = attend(
            self.split(query),
            self.split(key),
            self.split(value),
            self.heads.score_scale,
            self._visible(x.shape[1], lengths),
        )
        return self.out(self.join(mixed))

    def _visible(self, size: int, lengths: Tensor | None) -> Tensor | None:
        """Mask for `attend`, (B or 1, 1, T or 1, T)."""
        visible = None if lengths is None else within(lengths, size)[:, None, None]
        if self.is_causal:
            earlier = torch.ones(size, size, dtype=torch.bool).tril()[None, None]
            visible = earlier if visible is None else visible & earlier
        return visible


class CachedAttention(Attention):
    """Causal self-attention whose keys and values live in a cache that the engine owns."""

    def forward(self, x: Tensor, past: KeyValue, rows: Rows) -> tuple[Tensor, KeyValue]:
        """(R, T, D) → (R, T, D), and the cache with the new positions written.

        Args:
            past: each (R, H, P, K), K rounded up to `Heads.cache_width`; P holds the new positions.
        """
        if self.is_fused:
            mixed, key, value = self._fused(x, past, rows)
            return functional.linear(mixed, self.packed_out, self.out.bias), (key, value)
        positions = rows.positions(x.shape[1])
        present_key = self._write(past[0], self.split(self.key(x)), positions)
        present_value = self._write(past[1], self.split(self.value(x)), positions)
        seen = torch.arange(past[0].shape[2])[None, None, None]  # (1, 1, 1, P)
        width = self.heads.width
        mixed = attend(
            self.split(self.query(x)),
            present_key[..., :width],
            present_value[..., :width],
            self.heads.score_scale,
            seen <= positions[:, None, :, None],
        )
        return self.out(self.join(mixed)), (present_key, present_value)

    def _write(self, past: Tensor, new: Tensor, positions: Tensor) -> Tensor:
        """The cache with `new` (R, H, T, K) at `positions` (R, T) of its rows."""
        new = functional.pad(new, (0, past.shape[-1] - new.shape[-1]))
        return past.scatter(2, positions[:, None, :, None].expand_as(new), new)

    def pack(self) -> None:
        """Lays the projections out as GroupQueryAttention wants them: [q | k | v], heads padded.

        Called once before export; the weights as loaded stay the definition.
        """
        parts = [self.query, self.key, self.value]
        weight = torch.cat([self._padded(part.weight) for part in parts])
        self.register_buffer("packed_weight", weight, persistent=False)  # (3·H·K', D)
        bias = torch.cat([self._padded(part.bias) for part in parts]) if self.heads.bias else None
        self.register_buffer("packed_bias", bias, persistent=False)
        self.register_buffer("packed_out", self._padded(self.out.weight.T).T, persistent=False)

    def _padded(self, rows: Tensor) -> Tensor:
        """(H·K, …) → (H·K', …): zeros behind each head up to the cache's width."""
        per_head = rows.detach().unflatten(0, (self.heads.count, self.heads.width))
        empty = per_head.new_zeros(
            per_head.shape[0], self.heads.cache_width - self.heads.width, *per_head.shape[2:]
        )
        return torch.cat([per_head, empty], dim=1).flatten(0, 1).contiguous()

    def _fused(self, x: Tensor, past: KeyValue, rows: Rows) -> list[Tensor]:
        """`com.microsoft.GroupQueryAttention` on packed q, k, v: the mixed values and both caches.

        The operator counts a row's length without its last token (`seqlens_k`).
        """
        packed = functional.linear(x, self.packed_weight, self.packed_bias)
        mixed = (*x.shape[:2], self.heads.count * self.heads.cache_width)
        attributes = {
            "num_heads": self.heads.count,
            "kv_num_heads": self.heads.count,
            "scale": self.heads.score_scale,
        }
        return ops.symbolic_multi_out(
            "com.microsoft::GroupQueryAttention",
            [packed, None, None, *past, rows.lengths - 1, rows.total],
            attributes,
            dtypes=[x.dtype] * 3,
            shapes=[mixed, past[0].shape, past[1].shape],
            version=1,
        )


class CrossAttention(Attention):
    """Decoder rows look at a source; its keys and values are computed once, by `project_kv`."""

    def project_kv(self, source: Tensor) -> KeyValue:
        """(B, S, D) → keys and values, each (B, H, S, K)."""
        return self.split(self.key(source)), self.split(self.value(source))

    def forward(self, x: Tensor, memory: KeyValue, lengths: Tensor | None = None) -> Tensor:
        """(R, T, D) → (R, T, D); rows of one sequence (its beams) share one memory.

        Nothing here is causal, so the W·T positions of a sequence's W rows are one long query.

        Args:
            lengths: (B,) int32, source positions that are no padding.
        """
        key, value = memory
        query = self.query(x).reshape(key.shape[0], -1, x.shape[-1])  # (B, W·T, D)
        if self.is_fused:
            mixed = fused_attention(self.heads, query, key, value, lengths)
        else:
            visible = self._visible(key, lengths)
            mixed = self.join(
                attend(self.split(query), key, value, self.heads.score_scale, visible)
            )
        return self.out(mixed.reshape(x.shape))

    def weights(self, x: Tensor, memory: KeyValue, lengths: Tensor | None = None) -> Tensor:
        """(B, T, D) → (B, T, S): how much each position looks at the source, mean over heads."""
        key, query = memory[0], self.split(self.query(x))
        visible = self._visible(key, lengths)
        return attention_weights(query, key, self.heads.score_scale, visible).mean(dim=1)

    @staticmethod
    def _visible(key: Tensor, lengths: Tensor | None) -> Tensor | None:
        """Mask for `attend`, (B, 1, 1, S)."""
        return None if lengths is None else within(lengths, key.shape[2])[:, None, None]
