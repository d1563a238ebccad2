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

from export.decoder_graphs.language_model import language_model
from export.layers.attention.cached_attention import CachedAttention
from export.layers.attention.heads import Heads
from export.layers.blocks import DecoderBlock, GatedMLP, RMSNorm
from export.models.decoders import llama

# ---------------------------------------------------------------------------------------- config


def read_config(values: Mapping[str, Any]) -> llama.Config:
    """The configuration; unsupported fields that would change the network are refused."""
    if values.get("hidden_act") == "gelu":  # files of the first releases mean its approximation
        values = {**values, "hidden_act": "gelu_pytorch_tanh"}
    reader = llama.open_config(
        values,
        max_position_embeddings=8192,
        head_dim=256,
        hidden_act="gelu_pytorch_tanh",
        tie_word_embeddings=True,
    )
    if values.get("use_bidirectional_attention") is not None:
        reader.refuse_unless(use_bidirectional_attention=False)
    return llama.read_shape(reader, llama.read_heads(reader))


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
