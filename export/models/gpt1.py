"""The first GPT.

Paper: Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training", §3.1 and
§4.1: the Transformer's decoder (Vaswani 2017, arXiv 1706.03762) without a source; norms follow the
sub-layers, and none follows the last block.
Checkpoints: `model_type: openai-gpt` (`OpenAIGPTLMHeadModel`).

Legend: R rows, T new positions, D width, V vocabulary.

Differences from `transformers`: inference only; `Conv1D` weights are stored as those of linear
layers; there is a cache, where `transformers` computes the whole row for each token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from export.architecture import Architecture, Graphs
from export.chat import LANGUAGE_TASKS
from export.config_reader import ConfigReader
from export.decoding.transformer import language_model_graphs
from export.layers.attention import CachedAttention
from export.layers.blocks import DecoderBlock
from export.layers.decoder import TransformerDecoder, tied_logits
from export.layers.heads import Heads
from export.layers.mlp import MLP
from export.rename import Entry, Rename, WeightLayout
from export.twin import Twin
from serving.bundle import ImageSpec, Limits
from serving.errors import CheckpointError

# ---------------------------------------------------------------------------------------- config

_ACTIVATIONS = {"gelu": "gelu_new", "relu": "relu", "silu": "silu", "swish": "silu"}
"""Names of this family → ours: its `gelu` is the one through tanh."""


@dataclass(frozen=True)
class Config:
    """The network's part of `config.json`."""

    vocabulary_size: int
    positions: int
    layers: int
    heads: Heads
    activation: str
    norm_epsilon: float
    has_tied_output: bool

    @property
    def width(self) -> int:
        """D."""
        return self.heads.model_width

    @property
    def limits(self) -> Limits:
        """The position table bounds prompt and answer together; one place is for the answer."""
        return Limits(max_input_tokens=self.positions - 1, max_total_tokens=self.positions)


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration.

    Raises:
        CheckpointError: an activation that this family does not have.
    """
    reader = ConfigReader(values)
    reader.divisible("n_embd", "n_head")
    name = reader.text("afn", "gelu")
    if name not in _ACTIVATIONS:
        raise CheckpointError(
            f"{reader.place}: afn = {name!r} is not supported; supported are: "
            f"{', '.join(_ACTIVATIONS)}"
        )
    return Config(
        vocabulary_size=reader.integer("vocab_size", 40478),
        positions=reader.integer("n_positions", 512),
        layers=reader.integer("n_layer"),
        heads=Heads(reader.integer("n_embd"), reader.integer("n_head")),
        activation=_ACTIVATIONS[name],
        norm_epsilon=reader.number("layer_norm_epsilon", 1e-5),
        has_tied_output=reader.flag("tie_word_embeddings", True),
    )


# ---------------------------------------------------------------------------------------- blocks


def block(config: Config) -> DecoderBlock:
    """Causal self-attention and MLP, each followed by residual and norm."""
    return DecoderBlock(
        CachedAttention(config.heads),
        MLP(config.width, 4 * config.width, config.activation),
        partial(nn.LayerNorm, config.width, eps=config.norm_epsilon),
        is_norm_first=False,
    )


# --------------------------------------------------------------------------------------- network


class GPT(TransformerDecoder):
    """Tokens → scores of the next token."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.vocabulary_size = config.vocabulary_size
        self.tokens = nn.Embedding(config.vocabulary_size, config.width)
        self.positions = nn.Embedding(config.positions, config.width)
        self.blocks = nn.ModuleList(block(config) for _ in range(config.layers))
        self.output = self.tokens.weight
        if not config.has_tied_output:
            self.output = nn.Parameter(torch.zeros(config.vocabulary_size, config.width))

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """(R, T) → (R, T, D): token and position."""
        # The padding of a ragged prefill may lie beyond the table.
        positions = positions.clamp(max=self.positions.num_embeddings - 1)
        return self.tokens(tokens) + self.positions(positions)

    def logits(self, hidden: Tensor) -> Tensor:
        """(R, D) → (R, V)."""
        return tied_logits(hidden, self.output)


class LanguageModel(nn.Module):
    """The decoder, under the name that every generator has for it."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.decoder = GPT(config)


# ---------------------------------------------------------------------------------------- rename


def rename(config: Config) -> Rename:
    """`transformers`' names → ours; OpenAI's own folder has them without `transformer.`."""
    ours = "decoder.blocks.*"
    fused = (f"{ours}.attention.query", f"{ours}.attention.key", f"{ours}.attention.value")
    table: dict[str, Entry] = {
        "tokens_embed": "decoder.tokens",
        "positions_embed": "decoder.positions",
        "position_ids": None,
        "h.*.attn.bias": None,  # a causal mask that old versions stored
        "h.*.attn.c_attn": WeightLayout(fused, is_transposed=True),
        "h.*.attn.c_proj": WeightLayout((f"{ours}.attention.out",), is_transposed=True),
        "h.*.ln_1": f"{ours}.attention_norm",
        "h.*.mlp.c_fc": WeightLayout((f"{ours}.mlp.up",), is_transposed=True),
        "h.*.mlp.c_proj": WeightLayout((f"{ours}.mlp.down",), is_transposed=True),
        "h.*.ln_2": f"{ours}.mlp_norm",
    }
    named = {f"transformer.{name}": entry for name, entry in table.items()}
    head = "decoder.tokens.weight" if config.has_tied_output else "decoder.output"
    return Rename(named | table | {"lm_head.weight": head})


# ---------------------------------------------------------------------------------------- graphs


def graphs(model: LanguageModel, image: ImageSpec | None = None) -> Graphs:
    """`step` (R, T, P dynamic; self-attention in place)."""
    return language_model_graphs(model.decoder)


# ------------------------------------------------------------------------------------------ twin

_TINY = {
    "vocab_size": 64,
    "n_positions": 32,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
TWIN = Twin(
    reference="transformers:OpenAIGPTLMHeadModel",
    configs={
        "plain": _TINY,
        "odd": _TINY | {"n_embd": 30, "n_head": 3, "layer_norm_epsilon": 1e-3},
        "untied": _TINY | {"tie_word_embeddings": False, "afn": "relu", "n_layer": 1},
    },
)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = Architecture(
    name="gpt1",
    tasks=LANGUAGE_TASKS,
    read_config=read_config,
    build=LanguageModel,
    rename=rename,
    graphs=graphs,
    tokenizer="tokenizers",
    twin=TWIN,
)
