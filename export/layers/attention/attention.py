"""Multi-head attention (Vaswani 2017 §3.2, arXiv 1706.03762) over whole sequences.

The third form, over a cache, is `cached_attention.py`. Every form has one eager definition
(`scores.py`) and lowers to one fused operator of ONNX Runtime (`fused.py`) or, where a graph keeps
to standard operators, to its eager form.

Legend: B batch, R rows, T new positions (queries), S source positions (keys), H query heads, G key
and value heads, K width of a head, D model width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.onnx import is_in_onnx_export

from export.layers.attention.fused import MASKED_SCORE, multi_head_attention
from export.layers.attention.heads import Heads, KeyValue


def attend(
    heads: Heads,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """softmax(scale · query keyᵀ + bias) value: (B, H, T, K).

    Args:
        key: (B, G, S, K), as `value`.
        visible: bool, broadcast to (B, H, T, S): which keys a query may attend to.
        bias: float, broadcast to (B, H, T, S).
    """
    weights = attention_weights(heads, query, key, visible, bias)
    return weights @ repeat_groups(value, heads)


def attention_weights(
    heads: Heads,
    query: Tensor,
    key: Tensor,
    visible: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """softmax(scale · query keyᵀ + bias): (B, H, T, S); arguments as of `attend`."""
    scores = heads.score_scale * query @ repeat_groups(key, heads).transpose(-1, -2)
    if heads.soft_cap is not None:
        scores = heads.soft_cap * (scores / heads.soft_cap).tanh()
    if bias is not None:
        scores = scores + bias
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    return scores.softmax(dim=-1)


def repeat_groups(x: Tensor, heads: Heads) -> Tensor:
    """(B, G, S, K) → (B, H, S, K): each key and value head for every query head that shares it."""
    if x.shape[1] == heads.count:
        return x
    shared = x[:, :, None].expand(-1, -1, heads.count // heads.groups, -1, -1)
    return shared.flatten(1, 2)


def within(lengths: Tensor, size: int) -> Tensor:
    """(B, size) bool: which positions are no padding."""
    return torch.arange(size, device=lengths.device)[None] < lengths[:, None]


def causal(queries: Tensor, keys: int, window: int | None) -> Tensor:
    """(R, T, S) bool: keys at 0 … S - 1 that queries at (R, T) positions may attend to."""
    distance = queries[..., None] - torch.arange(keys, device=queries.device)
    return distance >= 0 if window is None else (distance >= 0) & (distance < window)


def in_block(queries: Tensor, keys: Tensor) -> Tensor:
    """(R, T, S) bool: queries and keys whose blocks (R, T), (R, S) are one number above 0."""
    return (queries[..., None] == keys[:, None]) & (queries > 0)[..., None]


def not_behind(queries: Tensor, keys: int, window: int) -> Tensor:
    """(R, T, S) bool: keys at 0 … S - 1 that are in the window of queries, or later ones."""
    return queries[..., None] - torch.arange(keys, device=queries.device) < window


def neighbours(size: int, window: int) -> Tensor:
    """(size, size) bool: positions nearer than the window, on either side."""
    positions = torch.arange(size)
    return (positions[:, None] - positions[None]).abs() < window


class Attention(nn.Module):
    """The four projections that the forms below share.

    Attributes:
        has_fused_form: Whether it is exported as a fused operator. Those do not return the weights,
            so graphs that output weights keep to standard operators (`Lowering.is_fused`).
        is_for_cuda: Whether CUDA runs it; see `CachedAttention`.
    """

    has_fused_form = True
    is_for_cuda = False

    def __init__(self, heads: Heads) -> None:
        super().__init__()
        queries, keys = heads.count * heads.width, heads.groups * heads.width
        self.heads = heads
        self.query = nn.Linear(heads.model_width, queries, bias=heads.bias)
        self.key = nn.Linear(heads.model_width, keys, bias=heads.bias)
        self.value = nn.Linear(heads.model_width, keys, bias=heads.bias)
        self.out = nn.Linear(queries, heads.model_width, bias=heads.out_bias)

    @property
    def is_fused(self) -> bool:
        """Whether this very call becomes a fused operator."""
        return self.has_fused_form and is_in_onnx_export()

    def split(self, x: Tensor) -> Tensor:
        """(B, T, H·K) → (B, H, T, K), or G for H."""
        return x.unflatten(-1, (-1, self.heads.width)).transpose(1, 2)

    def mix(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        lengths: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """(B, T, H·K), (B, S, H·K) and (B, S, H·V) → (B, T, H·V): what the queries read.

        Args:
            lengths: (B,) int32, keys that are no padding.
            bias: Of the scores, (1 or B, 1 or H, T, S).
        """
        if self.is_fused:
            return multi_head_attention(self.heads, query, key, value, lengths, bias)
        visible = None if lengths is None else within(lengths, key.shape[1])[:, None, None]
        query, key, value = (
            part.unflatten(-1, (self.heads.count, -1)).transpose(1, 2)
            for part in (query, key, value)
        )
        return self.join(attend(self.heads, query, key, value, visible, bias))

    def normalise_heads(self, x: Tensor, norm: nn.Module) -> Tensor:
        """(B, T, H·K) with each head normalised, before its dimensions are exchanged.

        ONNX Runtime does not fuse a norm behind a transposition, and the bits that its single
        operators give depend on the batch.
        """
        return norm(x.unflatten(-1, (-1, self.heads.width))).flatten(2)

    @staticmethod
    def join(x: Tensor) -> Tensor:
        """(B, H, T, K) → (B, T, H·K)."""
        return x.transpose(1, 2).flatten(2)


class SelfAttention(Attention):
    """Every position attends to every other (encoders), or only to earlier ones (`is_causal`)."""

    query_norm: nn.Module | None
    key_norm: nn.Module | None

    def __init__(self, heads: Heads, *, is_causal: bool = False) -> None:
        super().__init__(heads)
        self.is_causal = is_causal
        self.query_norm = self.key_norm = None  # of each head, where a decoder has them

    def forward(
        self, x: Tensor, lengths: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """(B, T, D) → (B, T, D).

        Args:
            lengths: (B,) int32, where the batch is padded on the right.
            bias: Of the scores, (1 or B, 1 or H, T, T).
        """
        if self.is_fused and self.heads.soft_cap is None:
            return self.out(self._attend_fused(x, lengths, bias))
        query, key, value = self._project(x)
        visible = self._visible(x.shape[1], lengths)
        return self.out(self.join(attend(self.heads, query, key, value, visible, bias)))

    def first(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(B, T, D) → (B, 1, D): `forward` at the first position, without rotation or window."""
        return self.out(self.mix(self.query(x[:, :1]), self.key(x), self.value(x), lengths))

    def weights(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(B, T, D) → (B, T, T): each position's attention to every other, mean over heads."""
        query, key, _ = self._project(x)
        visible = self._visible(x.shape[1], lengths)
        return attention_weights(self.heads, query, key, visible).mean(dim=1)

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, T, K), keys and values (B, G, T, K), rotated."""
        query, key, value = self.query(x), self.key(x), self.value(x)
        if self.query_norm is not None and self.key_norm is not None:
            query = self.normalise_heads(query, self.query_norm)
            key = self.normalise_heads(key, self.key_norm)
        query, key, value = (self.split(part) for part in (query, key, value))
        if self.heads.rotary is None:
            return query, key, value
        positions = torch.arange(x.shape[1])[None]
        rotate = self.heads.rotary.rotate
        return rotate(query, positions), rotate(key, positions), value

    def _attend_fused(self, x: Tensor, lengths: Tensor | None, bias: Tensor | None) -> Tensor:
        """(B, T, H·K). The operator has no shared heads, rotation or two-sided window."""
        heads = self.heads
        is_plain = heads.rotary is None and self.query_norm is None
        if is_plain and heads.groups == heads.count:
            query, key, value = self.query(x), self.key(x), self.value(x)
        else:
            query, key, value = (self.join(repeat_groups(part, heads)) for part in self._project(x))
        if heads.window is not None:
            near = self.near(x.shape[1], heads.window)
            hidden = torch.where(near, 0.0, MASKED_SCORE)[None, None]
            bias = hidden if bias is None else bias + hidden
        is_causal = self.is_causal
        return multi_head_attention(heads, query, key, value, lengths, bias, is_causal=is_causal)

    def near(self, size: int, window: int) -> Tensor:
        """(size, size) bool: which positions are in the window of a query."""
        return neighbours(size, window)

    def _visible(self, size: int, lengths: Tensor | None) -> Tensor | None:
        """Mask for `attend`, (B or 1, 1, T or 1, T)."""
        masks = []
        if lengths is not None:
            masks.append(within(lengths, size)[:, None, None])
        if self.is_causal:
            masks.append(torch.ones(size, size, dtype=torch.bool).tril()[None, None])
        if self.heads.window is not None:
            masks.append(self.near(size, self.heads.window)[None, None])
        visible = None
        for mask in masks:
            visible = mask if visible is None else visible & mask
        if visible is not None and len(masks) > 1:
            # far from every token, padding would see nothing: a softmax of nothing is NaN
            visible = visible | torch.eye(size, dtype=torch.bool)[None, None]
        return visible


class CrossAttention(Attention):
    """Decoder rows attend to a source, whose keys and values `project_kv` computes once.

    Args:
        source_width: Width of the source's vectors; D when not given.
    """

    def __init__(self, heads: Heads, source_width: int | None = None) -> None:
        super().__init__(heads)
        if source_width is not None:
            keys = heads.groups * heads.width
            self.key = nn.Linear(source_width, keys, bias=heads.bias)
            self.value = nn.Linear(source_width, keys, bias=heads.bias)

    def project_kv(self, source: Tensor) -> KeyValue:
        """(B, S, D) → keys and values, each (B, G, S, K)."""
        return self.split(self.key(source)), self.split(self.value(source))

    def forward(self, x: Tensor, cross: KeyValue, lengths: Tensor | None = None) -> Tensor:
        """(R, T, D) → (R, T, D); rows of one sequence (its beams) share its keys and values.

        Nothing here is causal, so the W·T positions of a sequence's W rows are one long query.

        Args:
            cross: What `project_kv` computed.
            lengths: (B,) int32, source positions that are no padding.
        """
        key, value = cross
        query = self.query(x).reshape(key.shape[0], -1, self.query.out_features)  # (B, W·T, H·K)
        if self.is_fused and self.heads.soft_cap is None:
            key, value = (repeat_groups(each, self.heads) for each in cross)
            mixed = multi_head_attention(self.heads, query, key, value, lengths)
        else:
            visible = self._visible(key, lengths)
            mixed = self.join(attend(self.heads, self.split(query), key, value, visible))
        return self.out(mixed.reshape(*x.shape[:2], -1))

    def weights(self, x: Tensor, cross: KeyValue, lengths: Tensor | None = None) -> Tensor:
        """(B, T, D) → (B, T, S): each position's attention to the source, mean over heads."""
        key, query = cross[0], self.split(self.query(x))
        visible = self._visible(key, lengths)
        return attention_weights(self.heads, query, key, visible).mean(dim=1)

    @staticmethod
    def _visible(key: Tensor, lengths: Tensor | None) -> Tensor | None:
        """Mask for `attend`, (B, 1, 1, S)."""
        return None if lengths is None else within(lengths, key.shape[2])[:, None, None]
