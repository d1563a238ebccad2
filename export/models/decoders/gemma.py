"""Gemma, the first version.

Report: Gemma Team 2024, "Gemma: Open Models Based on Gemini Research and Technology", §2 (arXiv
2403.08295): Llama's decoder with a GELU in the gate, wide heads, of which the 2B model has one of
keys and values; embeddings are scaled by √D, norms store their weights' distance from 1.
Checkpoints: `model_type: gemma`.

Legend: R rows, T new positions, D width.

Differences from `transformers`: inference only; attention to later positions
(`use_bidirectional_attention`) is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor

from export.config.config_reader import ConfigReader
from export.decoder_graphs.language_model import language_model
from export.layers.attention.cached_attention import CachedAttention
from export.layers.attention.heads import Heads
from export.layers.blocks import DecoderBlock, GatedMLP, RMSNorm
from export.models.decoders import llama

# ---------------------------------------------------------------------------------------- config

POSITIONS = 8192
"""Default of `max_position_embeddings`."""


def read_config(values: Mapping[str, Any]) -> llama.Config:
    """The configuration; unsupported fields that would change the network are refused."""
    reader = ConfigReader(
        {"tie_word_embeddings": True, **values, "hidden_act": _activation(values)}
    )
    if values.get("use_bidirectional_attention") is not None:
        reader.refuse_unless(use_bidirectional_attention=False)
    bias = reader.flag("attention_bias", False)
    heads = llama.read_heads(reader, bias=bias, out_bias=bias, head_width=256, positions=POSITIONS)
    return llama.read_shape(reader, heads, positions=POSITIONS)


def _activation(values: Mapping[str, Any]) -> Any:
    """Files of the first releases say `gelu` and mean its approximation."""
    given = values.get("hidden_act")
    return "gelu_pytorch_tanh" if given in (None, "gelu") else given


# ---------------------------------------------------------------------------------------- blocks


def make_block(config: llama.Config, heads: Heads) -> DecoderBlock:
    """Causal self-attention and gated MLP, behind norms."""
    return DecoderBlock(
        CachedAttention(heads),
        GatedMLP(config.width, config.mlp_width, config.activation),
        partial(RMSNorm, config.width, config.norm_epsilon, offset=1.0),
        is_norm_first=True,
    )


# --------------------------------------------------------------------------------------- network


class Gemma(llama.Llama):
    """Llama with scaled embeddings and norms that multiply by 1 + weight."""

    def __init__(self, config: llama.Config) -> None:
        super().__init__(config, make_block)
        self.scale = config.width**0.5
        self.norm = RMSNorm(config.width, config.norm_epsilon, offset=1.0)

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """(R, T) → (R, T, D)."""
        return self.tokens(tokens) * self.scale


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = language_model("gemma", read_config, Gemma, llama.names)
