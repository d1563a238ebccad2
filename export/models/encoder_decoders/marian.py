"""Marian's Transformer encoder-decoder.

Paper: Vaswani et al. 2017, "Attention Is All You Need", §3 (arXiv 1706.03762), as trained with
Marian (Junczys-Dowmunt et al. 2018, arXiv 1804.00344) for OPUS-MT (Tiedemann 2020).
Checkpoints: `Helsinki-NLP/opus-mt-*` and others of `model_type: marian`.

Legend: B batch, R decoder rows, T new positions, P past positions, S source positions, H heads,
K width of a head, D model width, V vocabulary.

Differences from the paper, all Marian's: sinusoidal positions hold the sines in the first half and
the cosines in the second; the decoder starts from the padding token; logits have a bias.
Differences from `transformers`: inference only; cross-attention keys and values are computed once;
a pre-norm configuration (`normalize_before`) is refused, where `transformers` silently ignores it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from export.architecture import Architecture, language_pairs
from export.config.config_reader import ConfigReader
from export.config.weight_names import Entry, Rename, WeightLayout, projections
from export.decoder_graphs.transformer import alignment, text_to_text_graphs
from export.layers.attention.attention import CachedAttention, CrossAttention, SelfAttention
from export.layers.attention.heads import Heads
from export.layers.attention.positions import sinusoids
from export.layers.blocks import DecoderBlock, EncoderBlock
from export.layers.decoder import TransformerDecoder, tied_logits
from export.layers.mlp import MLP
from export.twin import tiny_twin
from inference.bundle.manifest import Limits
from inference.errors import CheckpointError

# ---------------------------------------------------------------------------------------- config


@dataclass(frozen=True)
class StackConfig:
    """Encoder or decoder."""

    vocabulary_size: int
    layers: int
    heads: Heads
    mlp_width: int


@dataclass(frozen=True)
class Config:
    """The network's part of `config.json`.

    With shared embeddings there is one table for source, target and output; a tied output uses the
    target's table.
    """

    width: int
    positions: int
    activation: str
    embedding_scale: float
    encoder: StackConfig
    decoder: StackConfig
    has_shared_embeddings: bool
    has_tied_output: bool

    @property
    def limits(self) -> Limits:
        """The position table bounds both sides."""
        return Limits(max_input_tokens=self.positions, max_total_tokens=self.positions)


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; unsupported fields that would change the network are refused."""
    reader = ConfigReader(values)
    off = ("normalize_before", "normalize_embedding", "add_final_layer_norm", "add_bias_logits")
    reader.refuse_unless(**dict.fromkeys(off, False), static_position_embeddings=True)
    reader.refuse_unless(is_encoder_decoder=True)
    shared = reader.flag("share_encoder_decoder_embeddings", True)
    tied = reader.flag("tie_word_embeddings", True)
    if shared and not tied:
        raise CheckpointError(
            "config.json: share_encoder_decoder_embeddings needs tie_word_embeddings"
        )
    width = reader.integer("d_model")
    vocabulary = reader.integer("vocab_size")
    target = vocabulary if shared else reader.integer("decoder_vocab_size", vocabulary)
    return Config(
        width=width,
        positions=reader.integer("max_position_embeddings"),
        activation=reader.text("activation_function", "gelu"),
        embedding_scale=width**0.5 if reader.flag("scale_embedding", False) else 1.0,
        encoder=_read_stack(reader, "encoder", vocabulary),
        decoder=_read_stack(reader, "decoder", target),
        has_shared_embeddings=shared,
        has_tied_output=tied,
    )


def _read_stack(reader: ConfigReader, side: str, vocabulary_size: int) -> StackConfig:
    reader.divisible("d_model", f"{side}_attention_heads")
    names = ("layers", "attention_heads", "ffn_dim")
    layers, heads, mlp_width = (reader.integer(f"{side}_{name}") for name in names)
    return StackConfig(vocabulary_size, layers, Heads(reader.integer("d_model"), heads), mlp_width)


# ---------------------------------------------------------------------------------------- blocks


def make_encoder_block(config: Config) -> EncoderBlock:
    """Self-attention and MLP, each followed by residual and norm (§3.1)."""
    return EncoderBlock(
        SelfAttention(config.encoder.heads),
        MLP(config.width, config.encoder.mlp_width, config.activation),
        partial(nn.LayerNorm, config.width),
        is_norm_first=False,
    )


def make_decoder_block(config: Config) -> DecoderBlock:
    """Causal self-attention, cross-attention and MLP (§3.1)."""
    return DecoderBlock(
        CachedAttention(config.decoder.heads),
        MLP(config.width, config.decoder.mlp_width, config.activation),
        partial(nn.LayerNorm, config.width),
        CrossAttention(config.decoder.heads),
        is_norm_first=False,
    )


# --------------------------------------------------------------------------------------- network


class Embedding(nn.Module):
    """Token and position embeddings (§3.4, §3.5)."""

    def __init__(self, config: Config, tokens: nn.Embedding) -> None:
        super().__init__()
        self.positions: Tensor
        self.tokens = tokens
        self.scale = config.embedding_scale
        self.register_buffer("positions", sinusoids(config.positions, config.width))

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """(B, T) tokens at (B or 1, T) positions → (B, T, D)."""
        # The padding of a ragged prefill may lie beyond the table.
        positions = positions.clamp(max=self.positions.shape[0] - 1)
        return self.tokens(tokens) * self.scale + self.positions[positions]


class Encoder(nn.Module):
    """Source tokens → source representations."""

    def __init__(self, config: Config, tokens: nn.Embedding) -> None:
        super().__init__()
        self.embedding = Embedding(config, tokens)
        self.blocks = nn.ModuleList(
            make_encoder_block(config) for _ in range(config.encoder.layers)
        )

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B, S) → (B, S, D); values at padding are meaningless."""
        x = self.embedding(tokens, torch.arange(tokens.shape[1])[None])
        for block in self.blocks:
            x = block(x, lengths)
        return x


class Decoder(TransformerDecoder):
    """Target tokens and the source's keys and values → scores of the next token."""

    def __init__(self, config: Config, tokens: nn.Embedding) -> None:
        super().__init__()
        self.heads = config.decoder.heads
        self.vocabulary_size = config.decoder.vocabulary_size
        self.embedding = Embedding(config, tokens)
        self.blocks = nn.ModuleList(
            make_decoder_block(config) for _ in range(config.decoder.layers)
        )
        self.output_bias: Tensor
        self.output = tokens.weight
        if not config.has_tied_output:
            self.output = nn.Parameter(torch.zeros(self.vocabulary_size, config.width))
        self.register_buffer("output_bias", torch.zeros(self.vocabulary_size))

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """(R, T) → (R, T, D)."""
        return self.embedding(tokens, positions)

    def logits(self, hidden: Tensor) -> Tensor:
        """(R, D) → (R, V)."""
        return tied_logits(hidden, self.output, self.output_bias)


class Marian(nn.Module):
    """Both stacks."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        source = nn.Embedding(config.encoder.vocabulary_size, config.width)
        target = source
        if not config.has_shared_embeddings:
            target = nn.Embedding(config.decoder.vocabulary_size, config.width)
        self.encoder = Encoder(config, source)
        self.decoder = Decoder(config, target)


# ----------------------------------------------------------------------------------------- names


def rename(config: Config) -> Rename:
    """`transformers`' names → ours."""
    source = "encoder.embedding.tokens"
    target = source if config.has_shared_embeddings else "decoder.embedding.tokens"
    output = f"{target}.weight" if config.has_tied_output else "decoder.output"
    table: dict[str, Entry] = {
        "model.shared": source if config.has_shared_embeddings else None,
        "model.encoder.embed_tokens": source,
        "model.decoder.embed_tokens": target,
        "lm_head.weight": output,
        "final_logits_bias": WeightLayout(("decoder.output_bias",), is_squeezed=True),
        "model.encoder.embed_positions.weight": "encoder.embedding.positions",
        "model.decoder.embed_positions.weight": "decoder.embedding.positions",
    }
    for side in ("encoder", "decoder"):
        theirs, ours = f"model.{side}.layers.*", f"{side}.blocks.*"
        table |= projections(f"{theirs}.self_attn", f"{ours}.attention")
        table |= {
            f"{theirs}.self_attn_layer_norm": f"{ours}.attention_norm",
            f"{theirs}.fc1": f"{ours}.mlp.up",
            f"{theirs}.fc2": f"{ours}.mlp.down",
            f"{theirs}.final_layer_norm": f"{ours}.mlp_norm",
        }
    table |= projections("model.decoder.layers.*.encoder_attn", "decoder.blocks.*.cross")
    table["model.decoder.layers.*.encoder_attn_layer_norm"] = "decoder.blocks.*.cross_norm"
    optional = ["encoder.embedding.positions", "decoder.embedding.positions", "decoder.output_bias"]
    return Rename(table, frozenset(optional))


# ------------------------------------------------------------------------------------------ twin

_TINY = {
    "vocab_size": 64,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 32,
    "activation_function": "swish",
    "scale_embedding": True,
    "pad_token_id": 63,
    "eos_token_id": 0,
    "decoder_start_token_id": 63,
    "forced_eos_token_id": 0,
}
_TWO_TABLES = {
    "decoder_vocab_size": 50,
    "share_encoder_decoder_embeddings": False,
    "pad_token_id": 49,
    "decoder_start_token_id": 49,
}
TWIN = tiny_twin(
    "transformers:MarianMTModel",
    _TINY,
    {
        "odd": {
            "d_model": 30,
            "encoder_attention_heads": 5,
            "decoder_attention_heads": 3,
            "encoder_layers": 1,
        },
        "unscaled-relu": {
            "scale_embedding": False,
            "activation_function": "relu",
            "decoder_layers": 3,
        },
        "separate-tables": _TWO_TABLES
        | {"tie_word_embeddings": False, "activation_function": "gelu"},
        "tied-target": _TWO_TABLES
        | {
            "tie_word_embeddings": True,
            "d_model": 36,
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 2,
            "activation_function": "gelu_new",
        },
    },
)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = Architecture(
    name="marian",
    tasks={"translate": language_pairs},
    read_config=read_config,
    build=Marian,
    rename=rename,
    graphs=lambda model, image: text_to_text_graphs(model, model.encoder.embedding.tokens),
    tokenizer="sentencepiece_pair",
    twin=TWIN,
    details=lambda network: alignment(network.decoder),
)
