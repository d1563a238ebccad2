"""TrOCR's text decoder.

Paper: Li et al. 2021, "TrOCR: Transformer-based Optical Character Recognition with Pre-trained
Models", §2.2 (arXiv 2109.10282): the decoder of RoBERTa or MiniLM with cross-attention, in the form
of Vaswani 2017 (arXiv 1706.03762), norms behind.
Checkpoints: the decoder (`model_type: trocr`) of `model_type: vision-encoder-decoder` folders.

Legend: R rows, T new positions, P past positions, S source positions, D width, V vocabulary.

Differences from `transformers`: inference only; cross-attention keys and values are computed once.
With sinusoidal positions a padding token has none and later tokens are counted as if it were a
token, as `transformers` does when it decodes token by token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from export.config.config_reader import ConfigReader
from export.config.weight_names import Entry, Rename, projections
from export.layers.attention.attention import CachedAttention, CrossAttention
from export.layers.attention.heads import Heads
from export.layers.attention.positions import spread_sinusoids
from export.layers.blocks import DecoderBlock
from export.layers.decoder import TransformerDecoder, output_name, output_table
from export.layers.mlp import MLP
from inference.errors import CheckpointError

# ---------------------------------------------------------------------------------------- config

_OFFSET = 2  # rows of the learned table in front of position 0


@dataclass(frozen=True)
class Config:
    """The network's part of `config.json`."""

    vocabulary_size: int
    positions: int
    layers: int
    heads: Heads
    mlp_width: int
    activation: str
    padding: int
    source_width: int | None
    """Width of the vectors that cross-attention reads; None: those of the decoder."""
    embedding_scale: float
    has_learned_positions: bool
    has_embedding_norm: bool
    has_tied_output: bool

    @property
    def width(self) -> int:
        """D."""
        return self.heads.model_width


def read_config(reader: ConfigReader) -> Config:
    """The configuration; defaults are `transformers`' own."""
    width = reader.integer("d_model", 1024)
    heads = reader.integer("decoder_attention_heads", 16)
    reader.divide(width, heads)
    padding = reader.values.get("pad_token_id", 1)
    if not isinstance(padding, int):
        raise CheckpointError(f"{reader.place}: pad_token_id must be one id, not {padding!r}")
    own_source = reader.values.get("cross_attention_hidden_size") is not None
    return Config(
        vocabulary_size=reader.integer("vocab_size", 50265),
        positions=reader.integer("max_position_embeddings", 512),
        layers=reader.layers("decoder_layers", 12),
        heads=Heads(width, heads),
        mlp_width=reader.integer("decoder_ffn_dim", 4096),
        activation=reader.text("activation_function", "gelu"),
        padding=padding,
        source_width=reader.integer("cross_attention_hidden_size") if own_source else None,
        embedding_scale=math.sqrt(width) if reader.flag("scale_embedding", False) else 1.0,
        has_learned_positions=reader.flag("use_learned_position_embeddings", True),
        has_embedding_norm=reader.flag("layernorm_embedding", True),
        has_tied_output=reader.flag("tie_word_embeddings", True),
    )


# ---------------------------------------------------------------------------------------- blocks


def make_block(config: Config) -> DecoderBlock:
    """Causal self-attention, cross-attention and MLP, norms behind."""
    return DecoderBlock(
        CachedAttention(config.heads),
        MLP(config.width, config.mlp_width, config.activation),
        partial(nn.LayerNorm, config.width),
        CrossAttention(config.heads, config.source_width),
        is_norm_first=False,
    )


class LearnedPositions(nn.Embedding):
    """A trained vector for each position, as BART stores them: two rows are never read."""

    def __init__(self, positions: int, width: int) -> None:
        super().__init__(positions + _OFFSET, width)

    def places(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """(R, T) tokens at (R, T) positions → (R, T, D)."""
        return self((positions + _OFFSET).clamp(max=self.num_embeddings - 1))


class SinusoidalPositions(nn.Module):
    """Sines, then cosines (Vaswani 2017 §3.5, tensor2tensor's order), counted behind the padding.

    Position p is row `padding + 1 + p` of the table; a padding token's vector is zero.
    """

    table: Tensor

    def __init__(self, positions: int, width: int, padding: int) -> None:
        super().__init__()
        self.padding = padding
        table = spread_sinusoids(positions + padding + 1, width)
        table[padding] = 0
        self.register_buffer("table", table, persistent=False)

    def places(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """(R, T) tokens at (R, T) positions → (R, T, D)."""
        rows = torch.where(tokens == self.padding, self.padding, positions + self.padding + 1)
        return nn.functional.embedding(rows.clamp(max=len(self.table) - 1), self.table)


# --------------------------------------------------------------------------------------- network


class TrOCR(TransformerDecoder):
    """Tokens and a source's keys and values → scores of the next token."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.vocabulary_size = config.vocabulary_size
        self.embedding_scale = config.embedding_scale
        self.tokens = nn.Embedding(config.vocabulary_size, config.width)
        self.positions: LearnedPositions | SinusoidalPositions
        if config.has_learned_positions:
            self.positions = LearnedPositions(config.positions, config.width)
        else:
            self.positions = SinusoidalPositions(config.positions, config.width, config.padding)
        self.embedding_norm: nn.Module = nn.Identity()
        if config.has_embedding_norm:
            self.embedding_norm = nn.LayerNorm(config.width)
        self.blocks = nn.ModuleList(make_block(config) for _ in range(config.layers))
        self.output = output_table(self.tokens, is_tied=config.has_tied_output)

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """(R, T) → (R, T, D): scaled token and position, normalised."""
        x = self.tokens(tokens) * self.embedding_scale
        return self.embedding_norm(x + self.positions.places(tokens, positions))


# ----------------------------------------------------------------------------------------- names

_BLOCK = "model.decoder.layers.*"


def rename(config: Config, theirs: str, ours: str) -> dict[str, Entry]:
    """The table below a prefix on either side."""
    table: dict[str, Entry] = {
        "model.decoder.embed_tokens": "tokens",
        "model.decoder.embed_positions": "positions" if config.has_learned_positions else None,
        "model.decoder.layernorm_embedding": "embedding_norm",
        "output_projection.weight": output_name(is_tied=config.has_tied_output),
        **projections(f"{_BLOCK}.self_attn", "blocks.*.attention"),
        f"{_BLOCK}.self_attn_layer_norm": "blocks.*.attention_norm",
        **projections(f"{_BLOCK}.encoder_attn", "blocks.*.cross"),
        f"{_BLOCK}.encoder_attn_layer_norm": "blocks.*.cross_norm",
        f"{_BLOCK}.fc1": "blocks.*.mlp.up",
        f"{_BLOCK}.fc2": "blocks.*.mlp.down",
        f"{_BLOCK}.final_layer_norm": "blocks.*.mlp_norm",
    }
    return Rename(table).prefixed(theirs, ours)
