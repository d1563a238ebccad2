"""Configuration of BART and of what varies it, whose network is in `bart.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from export.config.config_reader import ConfigReader
from export.layers.attention.heads import Heads
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


@dataclass(frozen=True)
class StackConfig:
    """Encoder or decoder."""

    layers: int
    heads: Heads
    mlp_width: int


@dataclass(frozen=True)
class Config:
    """The network's part of `config.json`."""

    form: Form
    vocabulary_size: int
    source_vocabulary_size: int
    width: int
    positions: int
    pad_token_id: int
    activation: str
    embedding_scale: float
    encoder: StackConfig
    decoder: StackConfig
    has_one_table: bool
    """One table of tokens for source and target."""
    has_tied_output: bool
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
    width = reader.integer("d_model")
    is_scaled = reader.flag("scale_embedding", form.is_embedding_scaled)
    vocabulary_size = reader.integer("vocab_size")
    is_tied = reader.flag("tie_word_embeddings", True)
    return Config(
        form=form,
        vocabulary_size=vocabulary_size,
        source_vocabulary_size=vocabulary_size,
        width=width,
        positions=reader.integer("max_position_embeddings"),
        pad_token_id=reader.index("pad_token_id", form.pad_token_id),
        activation=reader.activation("activation_function", form.activation),
        embedding_scale=width**0.5 if is_scaled else 1.0,
        encoder=_read_stack(reader, "encoder"),
        decoder=_read_stack(reader, "decoder"),
        has_one_table=is_tied,
        has_tied_output=is_tied,
    )


def _read_stack(reader: ConfigReader, side: str) -> StackConfig:
    reader.divisible("d_model", f"{side}_attention_heads")
    heads, mlp_width = (reader.integer(f"{side}_{name}") for name in ("attention_heads", "ffn_dim"))
    layers = reader.layers(f"{side}_layers")
    return StackConfig(layers, Heads(reader.integer("d_model"), heads), mlp_width)
