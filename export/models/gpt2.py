"""GPT-2, alone and as a decoder with cross-attention.

Paper: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", §2.3; the blocks
are those of Vaswani 2017 (arXiv 1706.03762) with the norm in front. Cross-attention follows
`transformers`' `add_cross_attention`: a third sub-layer between the two.
Checkpoints: `model_type: gpt2`, alone (`gpt2_lm.py`) and as the decoder of
`model_type: vision-encoder-decoder` folders.

Legend: R rows, T new positions, P past positions, S source positions, H heads, K width of a head,
D width, V vocabulary.

Differences from `transformers`: inference only; cross-attention keys and values are computed once;
`Conv1D` weights are stored as those of linear layers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from export.config_reader import ConfigReader
from export.layers.attention import CachedAttention, CrossAttention
from export.layers.blocks import DecoderBlock
from export.layers.decoder import TransformerDecoder, tied_logits
from export.layers.heads import Heads
from export.layers.mlp import MLP
from export.rename import Entry, Rename, WeightLayout

# ---------------------------------------------------------------------------------------- config


@dataclass(frozen=True)
class Config:
    """The network's part of `config.json`."""

    vocabulary_size: int
    positions: int
    layers: int
    heads: Heads
    mlp_width: int
    activation: str
    norm_epsilon: float
    is_scaled_by_layer: bool
    """Attention scores of layer i are also divided by i + 1."""
    has_tied_output: bool

    @property
    def width(self) -> int:
        """D."""
        return self.heads.model_width

    def layer_heads(self, layer: int) -> Heads:
        """The heads of one layer, counted from 0."""
        if not self.is_scaled_by_layer:
            return self.heads
        return replace(self.heads, scale=self.heads.score_scale / (layer + 1))


def read_config(reader: ConfigReader, *, has_cross: bool) -> Config:
    """The configuration; what we lack is refused.

    Args:
        has_cross: Whether the blocks are to look at a source.
    """
    reader.refuse_unless(add_cross_attention=has_cross, cross_attention_hidden_size=None)
    reader.divisible("n_embd", "n_head")
    width = reader.integer("n_embd")
    is_scaled = reader.flag("scale_attn_weights", True)
    return Config(
        vocabulary_size=reader.integer("vocab_size"),
        positions=reader.integer("n_positions"),
        layers=reader.integer("n_layer"),
        heads=Heads(width, reader.integer("n_head"), scale=None if is_scaled else 1.0),
        mlp_width=reader.integer("n_inner", 4 * width),
        activation=reader.text("activation_function", "gelu_new"),
        norm_epsilon=reader.number("layer_norm_epsilon", 1e-5),
        is_scaled_by_layer=reader.flag("scale_attn_by_inverse_layer_idx", False),
        has_tied_output=reader.flag("tie_word_embeddings", True),
    )


# ---------------------------------------------------------------------------------------- blocks


def block(config: Config, layer: int, *, has_cross: bool) -> DecoderBlock:
    """Causal self-attention, cross-attention where there is a source, and MLP, behind norms."""
    heads = config.layer_heads(layer)
    return DecoderBlock(
        CachedAttention(heads),
        MLP(config.width, config.mlp_width, config.activation),
        partial(nn.LayerNorm, config.width, eps=config.norm_epsilon),
        CrossAttention(heads) if has_cross else None,
        is_norm_first=True,
    )


# --------------------------------------------------------------------------------------- network


class GPT2(TransformerDecoder):
    """Tokens and, with `has_cross`, a source's keys and values → scores of the next token."""

    def __init__(self, config: Config, *, has_cross: bool = False) -> None:
        super().__init__()
        self.heads = config.heads
        self.vocabulary_size = config.vocabulary_size
        self.tokens = nn.Embedding(config.vocabulary_size, config.width)
        self.positions = nn.Embedding(config.positions, config.width)
        blocks = (block(config, layer, has_cross=has_cross) for layer in range(config.layers))
        self.blocks = nn.ModuleList(blocks)
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


# ---------------------------------------------------------------------------------------- rename

_BLOCK = "transformer.h.*"


def rename(config: Config, theirs: str, ours: str) -> dict[str, Entry]:
    """The table below a prefix on either side."""
    own = "blocks.*"
    fused = (f"{own}.attention.query", f"{own}.attention.key", f"{own}.attention.value")
    table: dict[str, Entry] = {
        "transformer.wte": "tokens",
        "transformer.wpe": "positions",
        "lm_head.weight": "tokens.weight" if config.has_tied_output else "output",
        f"{_BLOCK}.ln_1": f"{own}.attention_norm",
        f"{_BLOCK}.attn.c_attn": WeightLayout(fused, is_transposed=True),
        f"{_BLOCK}.attn.c_proj": _conv1d(f"{own}.attention.out"),
        f"{_BLOCK}.ln_cross_attn": f"{own}.cross_norm",
        f"{_BLOCK}.crossattention.q_attn": _conv1d(f"{own}.cross.query"),
        f"{_BLOCK}.crossattention.c_attn": _conv1d(f"{own}.cross.key", f"{own}.cross.value"),
        f"{_BLOCK}.crossattention.c_proj": _conv1d(f"{own}.cross.out"),
        f"{_BLOCK}.ln_2": f"{own}.mlp_norm",
        f"{_BLOCK}.mlp.c_fc": _conv1d(f"{own}.mlp.up"),
        f"{_BLOCK}.mlp.c_proj": _conv1d(f"{own}.mlp.down"),
        "transformer.ln_f": "norm",
    }
    for attention in ("attn", "crossattention"):  # causal masks that old versions stored
        table |= {f"{_BLOCK}.{attention}.{mask}": None for mask in ("bias", "masked_bias")}
    return Rename(table).prefixed(theirs, ours)


def _conv1d(*targets: str) -> WeightLayout:
    return WeightLayout(targets, is_transposed=True)
