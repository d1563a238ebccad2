"""OPT, the open line to GPT-3.

Paper: Zhang et al. 2022, "OPT: Open Pre-trained Transformer Language Models", §2.1 (arXiv
2205.01068): GPT-3's decoder with ReLU. The 350M model has its norms behind the sub-layers and
narrower embeddings between two projections.
Checkpoints: `model_type: opt` (`OPTForCausalLM`).

Legend: R rows, T new positions, D width, E width of the embeddings, V vocabulary.

Differences from `transformers`: inference only. The table of positions begins with two rows that no
position uses (fairseq's padding); they are kept.
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
from export.rename import Entry, Rename, projections
from export.twin import Twin
from serving.bundle import ImageSpec, Limits

OFFSET = 2
"""Rows of the position table before that of position 0."""

# ---------------------------------------------------------------------------------------- config


@dataclass(frozen=True)
class Config:
    """The network's part of `config.json`."""

    vocabulary_size: int
    positions: int
    layers: int
    heads: Heads
    embedding_width: int
    """E."""
    mlp_width: int
    activation: str
    is_norm_first: bool
    has_final_norm: bool
    has_norm_weights: bool
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
    """The configuration."""
    reader = ConfigReader(values)
    reader.divisible("hidden_size", "num_attention_heads")
    width, bias = reader.integer("hidden_size"), reader.flag("enable_bias", True)
    is_norm_first = reader.flag("do_layer_norm_before", True)
    return Config(
        vocabulary_size=reader.integer("vocab_size"),
        positions=reader.integer("max_position_embeddings", 2048),
        layers=reader.integer("num_hidden_layers"),
        heads=Heads(width, reader.integer("num_attention_heads"), bias=bias, out_bias=bias),
        embedding_width=reader.integer("word_embed_proj_dim", width),
        mlp_width=reader.integer("ffn_dim"),
        activation=reader.text("activation_function", "relu"),
        is_norm_first=is_norm_first,
        has_final_norm=is_norm_first and not reader.flag("_remove_final_layer_norm", False),
        has_norm_weights=reader.flag("layer_norm_elementwise_affine", True),
        has_tied_output=reader.flag("tie_word_embeddings", True),
    )


# ---------------------------------------------------------------------------------------- blocks


def norm(config: Config) -> nn.LayerNorm:
    """The norm of every sub-layer."""
    return nn.LayerNorm(config.width, elementwise_affine=config.has_norm_weights)


def block(config: Config) -> DecoderBlock:
    """Causal self-attention and MLP, norms in front or, in the 350M model, behind."""
    return DecoderBlock(
        CachedAttention(config.heads),
        MLP(config.width, config.mlp_width, config.activation, bias=config.heads.bias),
        partial(norm, config),
        is_norm_first=config.is_norm_first,
    )


# --------------------------------------------------------------------------------------- network


class OPT(TransformerDecoder):
    """Tokens → scores of the next token."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.vocabulary_size = config.vocabulary_size
        inner, width = config.embedding_width, config.width
        self.tokens = nn.Embedding(config.vocabulary_size, inner)
        self.positions = nn.Embedding(config.positions + OFFSET, width)
        is_narrow = inner != width
        self.widen = nn.Linear(inner, width, bias=False) if is_narrow else nn.Identity()
        self.narrow = nn.Linear(width, inner, bias=False) if is_narrow else nn.Identity()
        self.blocks = nn.ModuleList(block(config) for _ in range(config.layers))
        self.norm = norm(config) if config.has_final_norm else nn.Identity()
        self.output = self.tokens.weight
        if not config.has_tied_output:
            self.output = nn.Parameter(torch.zeros(config.vocabulary_size, inner))

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """(R, T) → (R, T, D): token, made as wide as the model, and position."""
        # The padding of a ragged prefill may lie beyond the table.
        places = (positions + OFFSET).clamp(max=self.positions.num_embeddings - 1)
        return self.widen(self.tokens(tokens)) + self.positions(places)

    def finish(self, x: Tensor) -> Tensor:
        """(R, T, D) → (R, T, E)."""
        return self.narrow(self.norm(x))

    def logits(self, hidden: Tensor) -> Tensor:
        """(R, E) → (R, V)."""
        return tied_logits(hidden, self.output)


class LanguageModel(nn.Module):
    """The decoder, under the name that every generator has for it."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.decoder = OPT(config)


# ---------------------------------------------------------------------------------------- rename


def rename(config: Config) -> Rename:
    """`transformers`' names → ours; Meta's own folders have them without `model.`."""
    theirs, ours = "decoder.layers.*", "decoder.blocks.*"
    table: dict[str, Entry] = {
        "decoder.embed_tokens": "decoder.tokens",
        "decoder.embed_positions": "decoder.positions",
        "decoder.project_in": "decoder.widen",
        "decoder.project_out": "decoder.narrow",
        "decoder.final_layer_norm": "decoder.norm",
        f"{theirs}.self_attn_layer_norm": f"{ours}.attention_norm",
        f"{theirs}.fc1": f"{ours}.mlp.up",
        f"{theirs}.fc2": f"{ours}.mlp.down",
        f"{theirs}.final_layer_norm": f"{ours}.mlp_norm",
    }
    table |= projections(f"{theirs}.self_attn", f"{ours}.attention")
    named = {f"model.{name}": entry for name, entry in table.items()}
    head = "decoder.tokens.weight" if config.has_tied_output else "decoder.output"
    return Rename(named | table | {"lm_head.weight": head})


# ---------------------------------------------------------------------------------------- graphs


def graphs(model: LanguageModel, image: ImageSpec | None = None) -> Graphs:
    """`step` (R, T, P dynamic; self-attention in place)."""
    return language_model_graphs(model.decoder)


# ------------------------------------------------------------------------------------------ twin

_TINY = {
    "vocab_size": 64,
    "hidden_size": 32,
    "ffn_dim": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "word_embed_proj_dim": 32,
    "pad_token_id": 63,
    "bos_token_id": 2,
    "eos_token_id": 2,
}
TWIN = Twin(
    reference="transformers:OPTForCausalLM",
    configs={
        "plain": _TINY,
        "odd": _TINY
        | {
            "hidden_size": 30,
            "num_attention_heads": 3,
            "word_embed_proj_dim": 20,
            "do_layer_norm_before": False,
        },
        "narrow, norms in front": _TINY | {"word_embed_proj_dim": 12, "ffn_dim": 44},
        "bare": _TINY
        | {
            "enable_bias": False,
            "layer_norm_elementwise_affine": False,
            "activation_function": "gelu",
            "tie_word_embeddings": False,
        },
        "no final norm": _TINY | {"_remove_final_layer_norm": True},
    },
)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = Architecture(
    name="opt",
    tasks=LANGUAGE_TASKS,
    read_config=read_config,
    build=LanguageModel,
    rename=rename,
    graphs=graphs,
    tokenizer="tokenizers",
    twin=TWIN,
)
