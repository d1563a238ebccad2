"""BART, and the network that mBART, Pegasus, M2M-100 and Marian vary.

Paper: Lewis et al. 2020, "BART: Denoising Sequence-to-Sequence Pre-training for Natural Language
Generation, Translation, and Comprehension", §2 (arXiv 1910.13461).
Checkpoints: `facebook/bart-*` and summarisers made from them (`model_type: bart`).

Legend: B batch, R decoder rows, T new positions, P past positions, S source positions, H heads,
K width of a head, D model width, V vocabulary.

Differences from Vaswani et al. 2017: GELU; learned positions, of which the first two rows are
unused; a norm behind the embeddings. Differences from `transformers`: inference only;
cross-attention keys and values are computed once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from export.architecture import Architecture, Section, no_section
from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Entry, Rename, WeightLayout, projections
from export.decoder_graphs.transformer import alignment, text_to_text_graphs
from export.layers.attention.attention import CrossAttention, SelfAttention
from export.layers.attention.cached_attention import CachedAttention
from export.layers.attention.heads import Heads
from export.layers.attention.positions import PositionTable, sinusoids, spread_sinusoids
from export.layers.blocks import MLP, DecoderBlock, EncoderBlock
from export.layers.decoder import TransformerDecoder, tied_logits
from inference.bundle.manifest import Limits


class Positions(Enum):
    """How positions become vectors."""

    LEARNED = "learned"
    SINUSOIDS = "sinusoids"
    SPREAD_SINUSOIDS = "spread_sinusoids"
    """From the row behind the padding token's id, whose own row is zero."""


@dataclass(frozen=True)
class Form:
    """What a paper changes in the network."""

    positions: Positions = Positions.LEARNED
    is_norm_first: bool = False
    has_embedding_norm: bool = True
    has_final_norm: bool = False
    has_output_bias: bool = True
    activation: str = "gelu"
    is_embedding_scaled: bool = False
    """Where `config.json` does not decide."""
    pad_token_id: int = 1
    """Likewise."""
    norm_epsilon: float = 1e-5


@dataclass(frozen=True)
class StackConfig:
    """Encoder or decoder."""

    layers: int
    heads: Heads
    mlp_width: int


@dataclass(frozen=True, kw_only=True)
class Config:
    """The network's part of `config.json`."""

    form: Form
    vocabulary_size: int = key("vocab_size")
    source_vocabulary_size: int = key("vocab_size")
    width: int = key("d_model")
    positions: int = key("max_position_embeddings")
    pad_token_id: int = key("pad_token_id", kind="index")
    activation: str = key("activation_function", kind="activation")
    embedding_scale: float
    encoder: StackConfig
    decoder: StackConfig
    has_one_table: bool = key("tie_word_embeddings", True)
    """One table of tokens for source and target."""
    has_tied_output: bool = key("tie_word_embeddings", True)
    """The target's table is the output's, where the file has no other."""
    source_width: int | None = None
    """Of the vectors that cross-attention reads, where it is not D."""

    @property
    def limits(self) -> Limits:
        """The position table bounds both sides."""
        return Limits(max_input_tokens=self.positions, max_total_tokens=self.positions)


def read_config(values: Mapping[str, Any], form: Form | None = None) -> Config:
    """The configuration; unsupported fields that would change the network are refused.

    Args:
        form: A paper's other than BART's.
    """
    reader = ConfigReader(values)
    reader.refuse_heads("ForConditionalGeneration")
    reader.refuse_unless(is_encoder_decoder=True)
    return read_sizes(reader, form or Form())


def read_sizes(reader: ConfigReader, form: Form) -> Config:
    """The sizes of a network of this form."""
    # Fields of older files, which state the form that `model_type` implies.
    reader.refuse_unless(
        normalize_before=form.is_norm_first,
        normalize_embedding=form.has_embedding_norm,
        add_final_layer_norm=form.has_final_norm,
        static_position_embeddings=form.positions is not Positions.LEARNED,
    )
    defaults = {"pad_token_id": form.pad_token_id, "activation_function": form.activation}
    reader = ConfigReader(reader.values, reader.place, defaults)
    is_scaled = reader.flag("scale_embedding", form.is_embedding_scaled)
    return reader.read(
        Config,
        form=form,
        embedding_scale=reader.integer("d_model") ** 0.5 if is_scaled else 1.0,
        encoder=_read_stack(reader, "encoder"),
        decoder=_read_stack(reader, "decoder"),
    )


def _read_stack(reader: ConfigReader, side: str) -> StackConfig:
    reader.heads(f"{side}_attention_heads", width="d_model")
    heads, mlp_width = (reader.integer(f"{side}_{name}") for name in ("attention_heads", "ffn_dim"))
    layers = reader.layers(f"{side}_layers")
    return StackConfig(layers, Heads(reader.integer("d_model"), heads), mlp_width)


UNUSED_ROWS = 2  # of a learned position table: fairseq counted from behind the padding token's

# ---------------------------------------------------------------------------------------- blocks


def make_encoder_block(config: Config) -> EncoderBlock:
    """Self-attention and MLP."""
    return EncoderBlock(
        SelfAttention(config.encoder.heads),
        MLP(config.width, config.encoder.mlp_width, config.activation),
        make_norm(config),
        is_norm_first=config.form.is_norm_first,
    )


def make_decoder_block(config: Config) -> DecoderBlock:
    """Causal self-attention, cross-attention and MLP."""
    return DecoderBlock(
        CachedAttention(config.decoder.heads),
        MLP(config.width, config.decoder.mlp_width, config.activation),
        make_norm(config),
        CrossAttention(config.decoder.heads, config.source_width),
        is_norm_first=config.form.is_norm_first,
    )


def make_norm(config: Config) -> partial[nn.LayerNorm]:
    """Makes a norm."""
    return partial(nn.LayerNorm, config.width, eps=config.form.norm_epsilon)


def make_optional_norm(config: Config, *, is_there: bool) -> nn.Module:
    """A norm, or nothing."""
    return make_norm(config)() if is_there else nn.Identity()


# --------------------------------------------------------------------------------------- network


class Embedding(nn.Module):
    """Token and position embeddings, and their norm."""

    def __init__(self, config: Config, tokens: nn.Embedding) -> None:
        super().__init__()
        self.tokens = tokens
        self.scale = config.embedding_scale
        self.positions = position_table(config)
        self.norm = make_optional_norm(config, is_there=config.form.has_embedding_norm)

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """(B, T) tokens at (B or 1, T) positions → (B, T, D)."""
        return self.place(self.embed(tokens), tokens, positions)

    def embed(self, tokens: Tensor) -> Tensor:
        """(B, T) → (B, T, D), without their positions."""
        return self.tokens(tokens) * self.scale

    def place(self, x: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
        """(B, T, D) of tokens, or of what stands in their place → (B, T, D)."""
        return self.norm(x + self.positions(tokens, positions))


def position_table(config: Config) -> PositionTable:
    """The form's table."""
    count, width, padding = config.positions, config.width, config.pad_token_id
    if config.form.positions is Positions.LEARNED:
        return PositionTable(nn.Parameter(torch.zeros(count + UNUSED_ROWS, width)), UNUSED_ROWS)
    if config.form.positions is Positions.SINUSOIDS:
        return PositionTable(sinusoids(count, width))
    table = spread_sinusoids(padding + 1 + count, width)
    table[padding] = 0
    return PositionTable(table, padding + 1, padding)


class Encoder(nn.Module):
    """Source tokens → source representations."""

    def __init__(self, config: Config, tokens: nn.Embedding) -> None:
        super().__init__()
        self.embedding = Embedding(config, tokens)
        self.blocks = nn.ModuleList(
            make_encoder_block(config) for _ in range(config.encoder.layers)
        )
        self.norm = make_optional_norm(config, is_there=config.form.has_final_norm)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B, S) → (B, S, D); values at padding are meaningless."""
        return self.read(self.embed(tokens), tokens, lengths)

    def embed(self, tokens: Tensor) -> Tensor:
        """(B, S) → (B, S, D)."""
        return self.embedding.embed(tokens)

    def read(self, x: Tensor, tokens: Tensor, lengths: Tensor) -> Tensor:
        """The same, with vectors (B, S, D) in place of the tokens' own."""
        x = self.embedding.place(x, tokens, torch.arange(tokens.shape[1])[None])
        for block in self.blocks:
            x = block(x, lengths)
        return self.norm(x)


class Decoder(TransformerDecoder):
    """Target tokens and the source's keys and values → scores of the next token."""

    output: Tensor
    output_bias: Tensor | None

    def __init__(self, config: Config, tokens: nn.Embedding) -> None:
        super().__init__()
        self.heads = config.decoder.heads
        self.vocabulary_size = config.vocabulary_size
        self.embedding = Embedding(config, tokens)
        self.blocks = nn.ModuleList(
            make_decoder_block(config) for _ in range(config.decoder.layers)
        )
        self.norm = make_optional_norm(config, is_there=config.form.has_final_norm)
        self.output = nn.Parameter(torch.zeros(self.vocabulary_size, config.width))
        bias = torch.zeros(self.vocabulary_size) if config.form.has_output_bias else None
        self.register_buffer("output_bias", bias)

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """(R, T) → (R, T, D)."""
        return self.embedding(tokens, positions)

    def finish(self, x: Tensor) -> Tensor:
        """The final norm, where the form has one: (R, T, D) → (R, T, D)."""
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """(R, D) → (R, V)."""
        return tied_logits(hidden, self.output, self.output_bias)


class Bart(nn.Module):
    """Both stacks."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        source = nn.Embedding(config.source_vocabulary_size, config.width)
        target = source
        if not config.has_one_table:
            target = nn.Embedding(config.vocabulary_size, config.width)
        self.encoder = Encoder(config, source)
        self.decoder = Decoder(config, target)


# ----------------------------------------------------------------------------------------- names


def rename(config: Config) -> Rename:
    """`transformers`' names → ours; a base model's lack the prefix `model.`."""
    form, one = config.form, config.has_one_table
    source = "encoder.embedding.tokens"
    target = source if one else "decoder.embedding.tokens"
    table: dict[str, Entry] = {
        "model.shared": source if one else None,
        "model.encoder.embed_tokens": source,
        "model.decoder.embed_tokens": target,
        "model.encoder.version": None,  # which fairseq stored
        "model.decoder.version": None,
    }
    table |= _stack("encoder", form) | decoder_names(form)
    table |= {name.removeprefix("model."): entry for name, entry in table.items()}
    table["lm_head.weight"] = "decoder.output"
    bias = WeightLayout(("decoder.output_bias",), is_squeezed=True)
    table["final_logits_bias"] = bias if form.has_output_bias else None
    optional = {"decoder.output_bias"}
    if form.positions is Positions.SINUSOIDS:
        optional |= {f"{side}.embedding.positions.table" for side in ("encoder", "decoder")}
    tied = {"decoder.output": f"{target}.weight"} if config.has_tied_output else {}
    return Rename(table, frozenset(optional), tied=tied)


def decoder_names(form: Form) -> dict[str, Entry]:
    """Names of the decoder's blocks and norms."""
    table = _stack("decoder", form)
    table |= projections("model.decoder.layers.*.encoder_attn", "decoder.blocks.*.cross")
    table["model.decoder.layers.*.encoder_attn_layer_norm"] = "decoder.blocks.*.cross_norm"
    return table


def _stack(side: str, form: Form) -> dict[str, Entry]:
    """Names that encoder and decoder share."""
    theirs, ours = f"model.{side}.layers.*", f"{side}.blocks.*"
    table: dict[str, Entry] = {
        f"model.{side}.embed_positions.weight": f"{side}.embedding.positions.table",
        f"{theirs}.self_attn_layer_norm": f"{ours}.attention_norm",
        f"{theirs}.fc1": f"{ours}.mlp.up",
        f"{theirs}.fc2": f"{ours}.mlp.down",
        f"{theirs}.final_layer_norm": f"{ours}.mlp_norm",
    }
    if form.positions is Positions.SPREAD_SINUSOIDS:
        # Computed: files of older versions hold it, some with rows for other lengths.
        del table[f"model.{side}.embed_positions.weight"]
        table[f"model.{side}.embed_positions.weights"] = None
        table[f"model.{side}.embed_positions._float_tensor"] = None  # of TrOCR's older files
    if form.has_embedding_norm:
        table[f"model.{side}.layernorm_embedding"] = f"{side}.embedding.norm"
    if form.has_final_norm:
        table[f"model.{side}.layer_norm"] = f"{side}.norm"
    return table | projections(f"{theirs}.self_attn", f"{ours}.attention")


# ----------------------------------------------------------------------------------- declaration


def declare(name: str, tasks: Mapping[str, Section], form: Form | None = None) -> Architecture:
    """The declaration of a model of this network.

    Args:
        form: A paper's other than BART's.
    """
    return Architecture(
        name=name,
        tasks=tasks,
        read_config=partial(read_config, form=form),
        build=Bart,
        rename=rename,
        graphs=lambda model, image: text_to_text_graphs(model, model.encoder.embedding.tokens),
        details=lambda network: alignment(network.decoder),
    )


ARCHITECTURE = declare("bart", {"generate": no_section})
