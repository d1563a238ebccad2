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

from torch import Tensor, nn

from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Names, projections, with_and_without
from export.decoder_graphs.language_model import DecoderConfig, language_model
from export.layers.attention.cached_attention import CachedAttention
from export.layers.attention.heads import Heads
from export.layers.blocks import MLP, DecoderBlock
from export.layers.decoder import TransformerDecoder, output_table

OFFSET = 2
"""Rows of the position table before that of position 0."""

# ---------------------------------------------------------------------------------------- config


@dataclass(frozen=True, kw_only=True)
class Config(DecoderConfig):
    """The network's part of `config.json`."""

    embedding_width: int
    """E."""
    is_norm_first: bool = key("do_layer_norm_before", True)
    lacks_final_norm: bool = key("_remove_final_layer_norm", False)
    has_norm_weights: bool = key("layer_norm_elementwise_affine", True)

    @property
    def has_final_norm(self) -> bool:
        """Whether a norm follows the last block."""
        return self.is_norm_first and not self.lacks_final_norm


_NAMES = {"intermediate_size": "ffn_dim", "hidden_act": "activation_function"}
_DEFAULTS = {"max_position_embeddings": 2048, "hidden_act": "relu"}


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration."""
    reader = ConfigReader(values, defaults=_DEFAULTS, names=_NAMES)
    bias = reader.flag("enable_bias", True)
    heads = reader.read(Heads, bias=bias, out_bias=bias)
    return reader.read(
        Config,
        layers=(heads,) * reader.layers("num_hidden_layers"),
        embedding_width=reader.integer("word_embed_proj_dim", heads.model_width),
        norm_epsilon=1e-5,
    )


# ---------------------------------------------------------------------------------------- blocks


def make_norm(config: Config) -> nn.LayerNorm:
    """The norm of every sub-layer."""
    affine = config.has_norm_weights
    return nn.LayerNorm(config.width, config.norm_epsilon, elementwise_affine=affine)


def make_block(config: Config, heads: Heads) -> DecoderBlock:
    """Causal self-attention and MLP, norms in front or, in the 350M model, behind."""
    return DecoderBlock(
        CachedAttention(heads),
        MLP(config.width, config.mlp_width, config.activation, bias=heads.bias),
        partial(make_norm, config),
        is_norm_first=config.is_norm_first,
    )


# --------------------------------------------------------------------------------------- network


class OPT(TransformerDecoder):
    """Tokens → scores of the next token."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.layers[0]
        self.vocabulary_size = config.vocabulary_size
        inner, width = config.embedding_width, config.width
        self.tokens = nn.Embedding(config.vocabulary_size, inner)
        self.positions = nn.Embedding(config.positions + OFFSET, width)
        is_narrow = inner != width
        self.widen = nn.Linear(inner, width, bias=False) if is_narrow else nn.Identity()
        self.narrow = nn.Linear(width, inner, bias=False) if is_narrow else nn.Identity()
        self.blocks = nn.ModuleList(make_block(config, heads) for heads in config.layers)
        self.norm = make_norm(config) if config.has_final_norm else nn.Identity()
        self.output = output_table(self.tokens, is_tied=config.has_tied_output)

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """(R, T) → (R, T, D): token, made as wide as the model, and position."""
        return self.place(self.widen(self.tokens(tokens)), positions)

    def place(self, x: Tensor, positions: Tensor) -> Tensor:
        """Adds positions."""
        # The padding of a ragged prefill may lie beyond the table.
        places = (positions + OFFSET).clamp(max=self.positions.num_embeddings - 1)
        return x + self.positions(places)

    def finish(self, x: Tensor) -> Tensor:
        """(R, T, D) → (R, T, E)."""
        return self.narrow(self.norm(x))


# ----------------------------------------------------------------------------------------- names


def names(config: Config) -> Names:
    """`transformers`' names → ours; Meta's own folders have them without `model.`."""
    theirs, ours = "decoder.layers.*", "blocks.*"
    table: Names = {
        "decoder.embed_tokens": "tokens",
        "decoder.embed_positions": "positions",
        "decoder.version": None,  # which fairseq stored
        "decoder.project_in": "widen",
        "decoder.project_out": "narrow",
        "decoder.final_layer_norm": "norm",
        f"{theirs}.self_attn_layer_norm": f"{ours}.attention_norm",
        **projections(f"{theirs}.self_attn", f"{ours}.attention"),
        f"{theirs}.final_layer_norm": f"{ours}.mlp_norm",
        f"{theirs}.fc1": f"{ours}.mlp.up",
        f"{theirs}.fc2": f"{ours}.mlp.down",
    }
    return with_and_without("model.", table)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = language_model("opt", read_config, OPT, names)
