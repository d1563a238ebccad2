"""GPT-2, alone and as a decoder with cross-attention.

Paper: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", §2.3; the blocks
are those of Vaswani 2017 (arXiv 1706.03762) with the norm in front. Cross-attention follows
`transformers`' `add_cross_attention`: a third sub-layer between the two.
Checkpoints: `model_type: gpt2`, alone (`gpt2_lm.py`) and as the decoder of
`model_type: vision-encoder-decoder` folders. GPT-Neo has the same network, GPT-1 with norms behind.

Legend: R rows, T new positions, P past positions, S source positions, H heads, K width of a head,
D width, V vocabulary.

Differences from `transformers`: inference only; cross-attention keys and values are computed once;
`Conv1D` weights are stored as those of linear layers.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torch import Tensor, nn

from export.config.config_reader import ConfigReader
from export.config.weight_names import Names, Rename, WeightLayout
from export.decoder_graphs.language_model import DecoderConfig
from export.layers.attention.attention import CrossAttention
from export.layers.attention.cached_attention import CachedAttention
from export.layers.attention.heads import Heads
from export.layers.blocks import MLP, DecoderBlock
from export.layers.decoder import TransformerDecoder, output_name, output_table

# ---------------------------------------------------------------------------------------- config


NAMES = {
    "max_position_embeddings": "n_positions",
    "num_hidden_layers": "n_layer",
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "hidden_act": "activation_function",
}
"""Names of fields in most families → in this one."""


def read_config(reader: ConfigReader, *, has_cross: bool) -> DecoderConfig:
    """The configuration; what we lack is refused.

    Args:
        has_cross: Whether the blocks are to look at a source.
    """
    reader.refuse_unless(add_cross_attention=has_cross, cross_attention_hidden_size=None)
    reader = ConfigReader(reader.values, reader.place, {"hidden_act": "gelu_new"}, NAMES)
    is_scaled = reader.flag("scale_attn_weights", True)
    heads = reader.read(Heads, scale=None if is_scaled else 1.0)
    layers = (heads,) * reader.layers("num_hidden_layers")
    if reader.flag("scale_attn_by_inverse_layer_idx", False):  # scores are also divided by i + 1
        scales = (heads.score_scale / (layer + 1) for layer in range(len(layers)))
        layers = tuple(replace(heads, scale=scale) for scale in scales)
    mlp_width = reader.integer("intermediate_size", 4 * heads.model_width)
    return reader.read(DecoderConfig, layers=layers, mlp_width=mlp_width)


# ---------------------------------------------------------------------------------------- blocks


def make_block(
    config: DecoderConfig, heads: Heads, *, has_cross: bool, is_norm_first: bool
) -> DecoderBlock:
    """Causal self-attention, cross-attention where there is a source, and MLP."""
    return DecoderBlock(
        CachedAttention(heads),
        MLP(config.width, config.mlp_width, config.activation),
        partial(nn.LayerNorm, config.width, eps=config.norm_epsilon),
        CrossAttention(heads) if has_cross else None,
        is_norm_first=is_norm_first,
    )


# --------------------------------------------------------------------------------------- network


class GPT2(TransformerDecoder):
    """Tokens and, with `has_cross`, a source's keys and values → scores of the next token."""

    def __init__(
        self, config: DecoderConfig, *, has_cross: bool = False, is_norm_first: bool = True
    ) -> None:
        super().__init__()
        self.heads = config.layers[0]
        self.vocabulary_size = config.vocabulary_size
        self.tokens = nn.Embedding(config.vocabulary_size, config.width)
        self.positions = nn.Embedding(config.positions, config.width)
        make = partial(make_block, config, has_cross=has_cross, is_norm_first=is_norm_first)
        self.blocks = nn.ModuleList(map(make, config.layers))
        self.norm: nn.Module = nn.Identity()
        if is_norm_first:
            self.norm = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        self.output = output_table(self.tokens, is_tied=config.has_tied_output)

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """(R, T) → (R, T, D): token and position."""
        # The padding of a ragged prefill may lie beyond the table.
        positions = positions.clamp(max=self.positions.num_embeddings - 1)
        return self.tokens(tokens) + self.positions(positions)

    def finish(self, x: Tensor) -> Tensor:
        """(R, T, D) → (R, T, D): the norm behind the last block, where norms are in front."""
        return self.norm(x)


# ----------------------------------------------------------------------------------------- names

_BLOCK = "transformer.h.*"
_FUSED = ("query", "key", "value")


def names(config: DecoderConfig) -> Names:
    """`transformers`' names → ours, but the output's."""
    own = "blocks.*"
    table: Names = {
        "transformer.wte": "tokens",
        "transformer.wpe": "positions",
        f"{_BLOCK}.ln_1": f"{own}.attention_norm",
        f"{_BLOCK}.attn.c_attn": _conv1d(*(f"{own}.attention.{part}" for part in _FUSED)),
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
    return table


def rename(config: DecoderConfig, theirs: str, ours: str) -> Names:
    """The whole table below a prefix on either side."""
    head = {"lm_head.weight": output_name(is_tied=config.has_tied_output)}
    return Rename({**names(config), **head}).prefixed(theirs, ours)


def _conv1d(*targets: str) -> WeightLayout:
    return WeightLayout(targets, is_transposed=True)
