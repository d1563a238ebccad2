"""The Transformer decoder that every model of this kind shares, and its output layer.

Legend: B batch, R rows, T new positions, S source positions, D model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from export.layers.attention.heads import Heads, KeyValue, Rows
from export.layers.blocks import DecoderBlock


class TransformerDecoder(nn.Module):
    """Tokens, caches and, of a source, keys and values → hidden states.

    A model's own class builds `tokens`, `blocks`, `norm` and `output`, or defines what reads them.

    Attributes:
        heads: Shape of every layer's self-attention; of its cross-attention too.
        vocabulary_size: Tokens that it scores.
        output: Hidden states are multiplied with its rows, (V, D).
        is_aligned: Whether its attention over a source is one that aligns the tokens with it.
    """

    is_aligned: ClassVar[bool] = True
    heads: Heads
    vocabulary_size: int
    tokens: nn.Embedding
    blocks: nn.ModuleList
    norm: nn.Module
    output: Tensor

    @property
    def layers(self) -> int:
        """Number of blocks."""
        return len(self.blocks)

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """(R, T) tokens at (R, T) positions → (R, T, D).

        Positions of padding may lie beyond a table's end.
        """
        return self.tokens(tokens)

    def place(self, x: Tensor, positions: Tensor) -> Tensor:
        """What `embed` adds to a token's own vector: (R, T, D) at (R, T) positions → (R, T, D).

        Vectors that stand in place of tokens go through it too.
        """
        return x

    def position_bias(self, positions: Tensor, room: int) -> Tensor | None:
        """Bias of self-attention's scores: (R, T) positions → (R, H, T, P), shared by all layers.

        Args:
            room: P, the positions of the caches.
        """
        return None

    def finish(self, x: Tensor) -> Tensor:
        """What follows the last block: (R, T, D) → (R, T, D)."""
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """(R, D) → (R, V)."""
        return tied_logits(hidden, self.output)

    def forward(
        self,
        tokens: Tensor,
        rows: Rows,
        past: Sequence[KeyValue],
        cross: Sequence[KeyValue] = (),
        source: Tensor | None = None,
    ) -> tuple[Tensor, list[KeyValue]]:
        """(R, T) → hidden states (R, T, D) and the caches with the new positions.

        Args:
            cross: What `project_cross_kv` gave; empty without cross-attention.
            source: (B,) int32, source lengths, where sources are padded.
        """
        positions = rows.positions(tokens.shape[1])
        return self.run_blocks(self.embed(tokens, positions), positions, rows, past, cross, source)

    def run_blocks(
        self,
        x: Tensor,
        positions: Tensor,
        rows: Rows,
        past: Sequence[KeyValue],
        cross: Sequence[KeyValue] = (),
        source: Tensor | None = None,
        added: Sequence[Tensor] = (),
    ) -> tuple[Tensor, list[KeyValue]]:
        """What `forward` computes of embeddings (R, T, D) at (R, T) positions.

        Args:
            added: (R, T, D) each, to the outputs of the first blocks.
        """
        bias = self.position_bias(positions, past[0][0].shape[2])
        present = []
        for layer, block in enumerate(self.blocks):
            held = cross[layer] if cross else None
            x, written = block(x, rows, past[layer], held, source, bias)
            x = x + added[layer] if layer < len(added) else x
            present.append(written)
        return self.finish(x), present

    def cross_weights(
        self,
        tokens: Tensor,
        rows: Rows,
        past: Sequence[KeyValue],
        cross: Sequence[KeyValue],
        source: Tensor | None,
        layer: int,
    ) -> Tensor:
        """(B, T) → (B, T, S): each position's attention over the source in a layer, from 0."""
        positions = rows.positions(tokens.shape[1])
        x, bias = self.embed(tokens, positions), self.position_bias(positions, past[0][0].shape[2])
        blocks = cast(list[DecoderBlock], list(self.blocks))
        for index, block in enumerate(blocks[:layer]):
            x, _ = block(x, rows, past[index], cross[index], source, bias)
        x, _ = blocks[layer].self_attention(x, rows, past[layer], bias)
        return blocks[layer].cross_weights(x, cross[layer], source)

    def read_prefix(self, x: Tensor) -> list[KeyValue]:
        """Positions in front of the tokens (B, N, D) → each layer's part of the cache."""
        cache = []
        for block in cast(list[DecoderBlock], self.blocks):
            x, present = block.read_prefix(x)
            cache.append(present)
        return cache

    def project_cross_kv(self, source: Tensor) -> list[KeyValue]:
        """Encoder output (B, S, D) → each layer's cross-attention keys and values."""
        return [block.cross.project_kv(source) for block in cast(list[DecoderBlock], self.blocks)]


def output_table(tokens: nn.Embedding, *, is_tied: bool) -> Tensor:
    """The rows that hidden states are multiplied with: the tokens' own, or a table beside them."""
    return tokens.weight if is_tied else nn.Parameter(torch.zeros_like(tokens.weight))


def output_name(*, is_tied: bool) -> str:
    """What a decoder calls the parameter of `output_table`."""
    return "tokens.weight" if is_tied else "output"


def tied_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Scores: hidden (R, D) · weightᵀ (D, V) + bias (V,).

    As `Gemm` the embedding table is used where it lies; a linear layer would store it a second
    time, transposed.
    """
    if not torch.onnx.is_in_onnx_export():
        return nn.functional.linear(hidden, weight, bias)
    return torch.onnx.ops.symbolic(
        "::Gemm",
        [hidden, weight] if bias is None else [hidden, weight, bias],
        {"transB": 1},
        dtype=hidden.dtype,
        shape=[hidden.shape[0], weight.shape[0]],
    )
