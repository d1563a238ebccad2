"""Configuration of T5, whose network is in `t5.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from export.config.config_reader import ConfigReader
from export.layers.attention.heads import Heads
from export.tokenizer.languages import translation_prefixes
from inference.bundle.manifest import Limits
from inference.errors import CheckpointError

POSITIONS = 2048
"""Limit of source and output. No table bounds them: distances of `farthest` and more share a bucket
(128 tokens in all published checkpoints, which were trained with 512 and 1024 tokens)."""


@dataclass(frozen=True)
class Config:
    """The network's part of `config.json`."""

    vocabulary_size: int
    width: int
    heads: Heads
    mlp_width: int
    activation: str
    is_gated: bool
    encoder_layers: int
    decoder_layers: int
    buckets: int
    farthest: int
    epsilon: float
    output_scale: float
    """Factor of the last hidden state before the output table."""
    translates: bool
    """Whether `task_specific_params` has prefixes of translations."""

    @property
    def limits(self) -> Limits:
        """The same for both sides."""
        return Limits(max_input_tokens=POSITIONS, max_total_tokens=POSITIONS)


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; unsupported fields that would change the network are refused."""
    reader = ConfigReader(values)
    reader.refuse_unless(is_encoder_decoder=True)
    reader.refuse_heads("ForConditionalGeneration", "WithLMHeadModel")
    width, count = reader.integer("d_model"), reader.integer("num_heads", 8)
    layers = reader.layers("num_layers", 6)
    gate, name = _activation(reader)
    buckets, farthest = read_distances(reader)
    return Config(
        vocabulary_size=reader.integer("vocab_size"),
        width=width,
        heads=Heads(
            width,
            count,
            bias=False,
            out_bias=False,
            scale=1.0,
            head_width=reader.integer("d_kv", 64),
        ),
        mlp_width=reader.integer("d_ff"),
        activation=name,
        is_gated=gate,
        encoder_layers=layers,
        decoder_layers=reader.layers("num_decoder_layers", layers),
        buckets=buckets,
        farthest=farthest,
        epsilon=reader.number("layer_norm_epsilon", 1e-6),
        output_scale=width**-0.5 if _is_output_scaled(reader) else 1.0,
        translates=bool(translation_prefixes(values)),
    )


def read_distances(reader: ConfigReader) -> tuple[int, int]:
    """(buckets, distance from which all share one).

    Raises:
        CheckpointError: no bucket of an encoder's has one distance alone, or of a decoder's none is
            left for several; `transformers` divides by zero.
    """
    buckets = reader.integer("relative_attention_num_buckets", 32)
    farthest = reader.integer("relative_attention_max_distance", 128)
    if buckets < 4 or farthest <= buckets // 2:
        raise CheckpointError(
            f"{reader.place}: relative_attention_num_buckets = {buckets} must be at least 4, and "
            f"relative_attention_max_distance = {farthest} more than half of it"
        )
    return buckets, farthest


def _activation(reader: ConfigReader) -> tuple[bool, str]:
    """(is gated, name) of `feed_forward_proj`, e.g. `relu` or `gated-gelu`.

    Files also state the two apart, as `is_gated_act` and `dense_act_fn`, which take precedence.
    """
    default = "gated-gelu" if reader.text("model_type", "t5") == "mt5" else "relu"
    given = reader.text("feed_forward_proj", default)
    name = given.removeprefix("gated-")
    is_gated = name != given
    # As `transformers`: the gated form of v1.1 means the approximation through tanh.
    name = "gelu_new" if is_gated and name == "gelu" else name
    return reader.flag("is_gated_act", is_gated), reader.text("dense_act_fn", name)


def _is_output_scaled(reader: ConfigReader) -> bool:
    """Of T5 alone: v1.1 announces by untied embeddings that it does not scale.

    `transformers` writes `scale_decoder_outputs` since it ties by value.
    """
    if reader.text("model_type", "t5") == "mt5":
        return False
    return reader.flag("scale_decoder_outputs", reader.flag("tie_word_embeddings", True))
