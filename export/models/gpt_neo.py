"""GPT-Neo: GPT-2's blocks, every second one with local attention, scores not scaled.

Source: Black et al. 2021, "GPT-Neo: Large Scale Autoregressive Language Modeling with
Mesh-TensorFlow" (doi 10.5281/zenodo.5297715); local attention as in Beltagy et al. 2020,
"Longformer", §3.1 (arXiv 2004.05150), backwards only.
Checkpoints: `model_type: gpt_neo` (`GPTNeoForCausalLM`).

Legend: R rows, T new positions, D width, V vocabulary.

Differences from `transformers`: inference only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
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
from export.rename import Entry, Rename, projections
from export.twin import Twin
from serving.bundle import ImageSpec, Limits
from serving.errors import CheckpointError

# ---------------------------------------------------------------------------------------- config


@dataclass(frozen=True)
class Config:
    """The network's part of `config.json`."""

    vocabulary_size: int
    positions: int
    layers: tuple[Heads, ...]
    """Of each layer; they differ in their window only."""
    mlp_width: int
    activation: str
    norm_epsilon: float
    has_tied_output: bool

    @property
    def width(self) -> int:
        """D."""
        return self.layers[0].model_width

    @property
    def limits(self) -> Limits:
        """The position table bounds prompt and answer together; one place is for the answer."""
        return Limits(max_input_tokens=self.positions - 1, max_total_tokens=self.positions)


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration."""
    reader = ConfigReader(values)
    reader.divisible("hidden_size", "num_heads")
    width, window = reader.integer("hidden_size"), reader.integer("window_size", 256)
    heads = Heads(width, reader.integer("num_heads"), bias=False, scale=1.0)
    kinds = _attention_kinds(reader)
    return Config(
        vocabulary_size=reader.integer("vocab_size"),
        positions=reader.integer("max_position_embeddings", 2048),
        layers=tuple(replace(heads, window=window if kind == "local" else None) for kind in kinds),
        mlp_width=reader.integer("intermediate_size", 4 * width),
        activation=reader.text("activation_function", "gelu_new"),
        norm_epsilon=reader.number("layer_norm_epsilon", 1e-5),
        has_tied_output=reader.flag("tie_word_embeddings", True),
    )


def _attention_kinds(reader: ConfigReader) -> list[str]:
    """`global` or `local` for each layer: `attention_types` is [[kinds, how often], …].

    Files also list them by layer, in `attention_layers`, which takes precedence.

    Raises:
        CheckpointError: another kind, or not one for each layer.
    """
    count = reader.integer("num_layers")
    types = reader.values.get("attention_types") or [[["global", "local"], 12]]
    try:
        kinds = [kind for group, times in types for _ in range(times) for kind in group]
    except (TypeError, ValueError):
        kinds = []
    kinds = reader.values.get("attention_layers") or kinds
    if len(kinds) != count or not set(kinds) <= {"global", "local"}:
        raise CheckpointError(
            f"{reader.place}: attention_types and attention_layers must give `global` or "
            f"`local` for each of {count} layers, not {types!r} and "
            f"{reader.values.get('attention_layers')!r}"
        )
    return kinds


# ---------------------------------------------------------------------------------------- blocks


def block(config: Config, heads: Heads) -> DecoderBlock:
    """Causal self-attention and MLP, behind norms."""
    return DecoderBlock(
        CachedAttention(heads),
        MLP(config.width, config.mlp_width, config.activation),
        partial(nn.LayerNorm, config.width, eps=config.norm_epsilon),
        is_norm_first=True,
    )


# --------------------------------------------------------------------------------------- network


class GPTNeo(TransformerDecoder):
    """Tokens → scores of the next token."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.layers[0]
        self.vocabulary_size = config.vocabulary_size
        self.tokens = nn.Embedding(config.vocabulary_size, config.width)
        self.positions = nn.Embedding(config.positions, config.width)
        self.blocks = nn.ModuleList(block(config, heads) for heads in config.layers)
        self.norm = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        self.output = self.tokens.weight
        if not config.has_tied_output:
            self.output = nn.Parameter(torch.zeros(config.vocabulary_size, config.width))

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """(R, T) → (R, T, D): token and position."""
        # The padding of a ragged prefill may lie beyond the table.
        positions = positions.clamp(max=self.positions.num_embeddings - 1)
        return self.tokens(tokens) + self.positions(positions)

    def finish(self, x: Tensor) -> Tensor:
        """(R, T, D) → (R, T, D): the norm behind the last block."""
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """(R, D) → (R, V)."""
        return tied_logits(hidden, self.output)


class LanguageModel(nn.Module):
    """The decoder, under the name that every generator has for it."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.decoder = GPTNeo(config)


# ---------------------------------------------------------------------------------------- rename


def rename(config: Config) -> Rename:
    """`transformers`' names → ours."""
    theirs, ours = "transformer.h.*", "decoder.blocks.*"
    table: dict[str, Entry] = {
        "transformer.wte": "decoder.tokens",
        "transformer.wpe": "decoder.positions",
        "lm_head.weight": "decoder.tokens.weight" if config.has_tied_output else "decoder.output",
        f"{theirs}.ln_1": f"{ours}.attention_norm",
        f"{theirs}.ln_2": f"{ours}.mlp_norm",
        f"{theirs}.mlp.c_fc": f"{ours}.mlp.up",
        f"{theirs}.mlp.c_proj": f"{ours}.mlp.down",
        "transformer.ln_f": "decoder.norm",
    }
    table |= projections(f"{theirs}.attn.attention", f"{ours}.attention")
    for mask in ("bias", "masked_bias"):  # causal masks that old versions stored
        table[f"{theirs}.attn.attention.{mask}"] = None
    return Rename(table)


# ---------------------------------------------------------------------------------------- graphs


def graphs(model: LanguageModel, image: ImageSpec | None = None) -> Graphs:
    """`step` (R, T, P dynamic; self-attention in place)."""
    return language_model_graphs(model.decoder)


# ------------------------------------------------------------------------------------------ twin

_TINY = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_layers": 2,
    "num_heads": 4,
    "attention_types": [[["global", "local"], 1]],
    "window_size": 3,
    "max_position_embeddings": 32,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
TWIN = Twin(
    reference="transformers:GPTNeoForCausalLM",
    configs={
        "plain": _TINY,
        "odd": _TINY
        | {
            "hidden_size": 30,
            "num_heads": 3,
            "intermediate_size": 44,
            "layer_norm_epsilon": 1e-3,
        },
        "local first": _TINY
        | {
            "num_layers": 3,
            "attention_types": [[["local"], 2], [["global"], 1]],
            "activation_function": "relu",
            "tie_word_embeddings": False,
        },
    },
)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = Architecture(
    name="gpt_neo",
    tasks=LANGUAGE_TASKS,
    read_config=read_config,
    build=LanguageModel,
    rename=rename,
    graphs=graphs,
    tokenizer="tokenizers",
    twin=TWIN,
)
