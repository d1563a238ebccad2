"""Causal self-attention of a decoder, whose keys and values stay in a cache between calls.

Legend: B batch, R rows, T new positions, P positions of the cache, S keys, N positions of a prefix,
H heads, G key and value heads, K width of a head, K' that of the cache, D model width.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from export.layers.attention.attention import (
    Attention,
    attend,
    causal,
    in_block,
    not_behind,
    repeat_groups,
    within,
)
from export.layers.attention.fused import (
    MASKED_SCORE,
    group_query_attention,
    multi_head_attention,
    rotates_fused,
)
from export.layers.attention.heads import Heads, KeyValue, Rows


class CachedAttention(Attention):
    """Causal self-attention whose keys and values are in a cache that the engine owns.

    With a bias, for CUDA, it is exported as standard operators: the fused one takes a bias that is
    cut to the longest row, and a size that the host reads in the middle of a step forbids capturing
    the step as a graph.

    Args:
        norm: Width → a norm of each head's queries, and one of its keys, before they are rotated
            (Henry et al. 2020, "Query-Key Normalization", arXiv 2010.04245); none when not given.
    """

    packed_weight: Tensor
    packed_bias: Tensor | None
    packed_out: Tensor

    def __init__(self, heads: Heads, norm: Callable[[int], nn.Module] | None = None) -> None:
        super().__init__(heads)
        self.query_norm = norm(heads.width) if norm else None
        self.key_norm = norm(heads.width) if norm else None

    def forward(
        self, x: Tensor, past: KeyValue, rows: Rows, bias: Tensor | None = None
    ) -> tuple[Tensor, KeyValue]:
        """(R, T, D) → (R, T, D), and the cache with the new positions written.

        Args:
            past: each (R, G, P, K), K rounded up to `Heads.cache_width`; P holds the new positions.
            bias: Of the scores, (R, H, T, P).
        """
        if self.is_fused and (bias is None or not self.is_for_cuda):
            mixed, present_key, present_value = self._attend_fused(x, past, rows, bias)
            out = functional.linear(mixed, self.packed_out, self.out.bias)
            return out, (present_key, present_value)
        positions = rows.positions(x.shape[1])
        query, key, value = self.project(x, rows)
        present_key = self._write(past[0], key, positions)
        present_value = self._write(past[1], value, positions)
        visible = causal(positions, past[0].shape[2], self.heads.window)
        if self.heads.is_prefix_lm:
            first = rows.is_first[:, None, None]
            visible = visible | (first & within(rows.lengths, past[0].shape[2])[:, None])
        if rows.blocks is not None:
            held = torch.zeros_like(past[0][:, 0, :, 0], dtype=torch.int64)  # (R, P)
            held = held.scatter(1, positions, rows.blocks)
            visible = visible | self._in_block(rows.blocks, held, positions)
        visible, width = visible[:, None], self.heads.width
        keys, values = present_key[..., :width], present_value[..., :width]
        mixed = attend(self.heads, query, keys, values, visible, bias)
        return self.out(self.join(mixed)), (present_key, present_value)

    def project(self, x: Tensor, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries, keys and values of new positions: (R, H or G, T, K) each."""
        query, key, value = (self.split(part(x)) for part in (self.query, self.key, self.value))
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        if self.heads.rotary is not None:
            turns = rows.rotations(x.shape[1])
            query, key = (self.heads.rotary.rotate(each, turns) for each in (query, key))
        return query, key, value

    def read_prefix(self, x: Tensor) -> tuple[Tensor, KeyValue]:
        """(B, N, D) → (B, N, D) of positions in front of the tokens, and their part of the cache.

        They attend to each other, whatever their order, and to no token; keys and values are
        (B, G, N, K), K rounded up as in the cache.
        """
        assert self.heads.rotary is None
        key, value = self.key(x), self.value(x)
        room = self.heads.cache_width - self.heads.width
        cached = tuple(functional.pad(self.split(part), (0, room)) for part in (key, value))
        if self.is_fused and self.heads.groups == self.heads.count:
            mixed = multi_head_attention(self.heads, self.query(x), key, value)
        else:
            query, key, value = (self.split(part) for part in (self.query(x), key, value))
            mixed = self.join(attend(self.heads, query, key, value))
        return self.out(mixed), (cached[0], cached[1])

    def _write(self, past: Tensor, new: Tensor, positions: Tensor) -> Tensor:
        """The cache with `new` (R, G, T, K) at `positions` (R, T) of its rows."""
        new = functional.pad(new, (0, past.shape[-1] - new.shape[-1]))
        return past.scatter(2, positions[:, None, :, None].expand_as(new), new)

    def pack(self) -> None:
        """Lays the projections out as GroupQueryAttention expects them: [q | k | v], heads padded.

        Called once before export; the weights as loaded stay the definition.
        """
        parts = [self.query, self.key, self.value]
        weight = torch.cat([self._pad(part.weight) for part in parts])
        self.register_buffer("packed_weight", weight, persistent=False)  # ((H + 2·G)·K', D)
        bias = torch.cat([self._pad(part.bias) for part in parts]) if self.heads.bias else None
        self.register_buffer("packed_bias", bias, persistent=False)
        self.register_buffer("packed_out", self._pad(self.out.weight.T).T, persistent=False)

    def _pad(self, rows: Tensor) -> Tensor:
        """(H·K, …) → (H·K', …): zeros behind each head up to the cache's width."""
        per_head = rows.detach().unflatten(0, (-1, self.heads.width))
        empty = per_head.new_zeros(
            per_head.shape[0], self.heads.cache_width - self.heads.width, *per_head.shape[2:]
        )
        return torch.cat([per_head, empty], dim=1).flatten(0, 1).contiguous()

    def _attend_fused(
        self, x: Tensor, past: KeyValue, rows: Rows, bias: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The mixed values (R, T, H·K') and both caches."""
        packed = functional.linear(x, self.packed_weight, self.packed_bias)
        if self.query_norm is not None and self.key_norm is not None:
            packed = self._normalise(packed, self.query_norm, self.key_norm)
        if self.heads.rotary is not None and not rotates_fused(self.heads):
            packed = self._rotate(packed, rows.rotations(x.shape[1]))
        mixed, *present = group_query_attention(self.heads, packed, past, rows, bias)
        if self.heads.is_prefix_lm:
            first = rows.is_first[:, None, None]
            mixed = torch.where(first, self._attend_both_ways(packed, rows), mixed)
        if rows.blocks is not None:
            is_in_block = (rows.blocks > 0)[..., None]
            mixed = torch.where(is_in_block, self._attend_in_blocks(packed, rows), mixed)
        return mixed, present[0], present[1]

    def _in_block(self, queries: Tensor, keys: Tensor, positions: Tensor) -> Tensor:
        """(R, T, S) bool: keys of a query's block, of those behind it as far as the window.

        Args:
            queries: Blocks of the new positions, (R, T).
            keys: Blocks of the keys at 0 … S - 1, (R, S).
        """
        together = in_block(queries, keys)
        if self.heads.window is None:
            return together
        return together & not_behind(positions, keys.shape[1], self.heads.window)

    def _attend_in_blocks(self, packed: Tensor, rows: Rows) -> Tensor:
        """New positions attend to earlier new ones and to all of their block (D104).

        As `_attend_both_ways`: (R, T, (H + 2·G)·K') → mixed of a row's first call.
        """
        assert rows.blocks is not None
        new = packed.shape[1]
        places = torch.arange(new, device=packed.device)[None]
        visible = causal(places, new, self.heads.window)
        visible = (visible | self._in_block(rows.blocks, rows.blocks, places))[:, None]
        query, key, value = self._unpack(packed, rows)
        if self.heads.soft_cap is not None:
            return self.join(attend(self.heads, query, key, value, visible))
        bias = torch.where(visible, 0.0, MASKED_SCORE)
        query, key, value = (self.join(part) for part in (query, key, value))
        return multi_head_attention(self.heads, query, key, value, bias=bias)

    def _attend_both_ways(self, packed: Tensor, rows: Rows) -> Tensor:
        """New positions attend to each other and to no earlier one: (R, T, (H + 2·G)·K') → mixed.

        The operator that writes the cache is causal; this is its result for a prompt's first call.
        """
        query, key, value = self._unpack(packed, rows)
        lengths = (rows.last + 1).int()
        if self.heads.soft_cap is None:
            query, key, value = (self.join(part) for part in (query, key, value))
            return multi_head_attention(self.heads, query, key, value, lengths)
        visible = within(lengths, packed.shape[1])[:, None, None]
        return self.join(attend(self.heads, query, key, value, visible))

    def _unpack(self, packed: Tensor, rows: Rows) -> list[Tensor]:
        """Rotated queries, keys and values, (R, H, T, K') each, of (R, T, (H + 2·G)·K')."""
        heads, new = self.heads, packed.shape[1]
        if heads.rotary is not None and rotates_fused(heads):
            packed = self._rotate(packed, rows.rotations(new))
        sizes = [heads.count, heads.groups, heads.groups]
        parts = packed.unflatten(-1, (-1, heads.cache_width)).transpose(1, 2).split(sizes, dim=1)
        return [repeat_groups(part, heads) for part in parts]

    def _normalise(self, packed: Tensor, query_norm: nn.Module, key_norm: nn.Module) -> Tensor:
        """Queries and keys of (R, T, (H + 2·G)·K') normalised, without their padding."""
        heads = self.heads
        padding = (0, heads.cache_width - heads.width)
        query, key, value = packed.unflatten(-1, (-1, heads.cache_width)).split(
            [heads.count, heads.groups, heads.groups], dim=2
        )
        query, key = query_norm(query[..., : heads.width]), key_norm(key[..., : heads.width])
        if padding[1]:
            query, key = functional.pad(query, padding), functional.pad(key, padding)
        return torch.cat([query, key, value], dim=2).flatten(2)

    def _rotate(self, packed: Tensor, positions: Tensor) -> Tensor:
        """Queries and keys of (R, T, (H + 2·G)·K') rotated in the graph, values as they are."""
        assert self.heads.rotary is not None
        per_head = packed.unflatten(-1, (-1, self.heads.cache_width)).transpose(1, 2)
        turning = self.heads.count + self.heads.groups
        turned = self.heads.rotary.rotate(per_head[:, :turning], positions)
        return self.join(torch.cat([turned, per_head[:, turning:]], dim=1))
