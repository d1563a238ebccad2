"""GPT-1, GPT-2, GPT-Neo and OPT: learned positions, layer norms and a plain MLP.

Papers: Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training", §3.1 and
§4.1: the Transformer's decoder (Vaswani 2017, arXiv 1706.03762) without a source; norms follow the
sub-layers, and none follows the last block. Radford et al. 2019, "Language Models are Unsupervised
Multitask Learners", §2.3: norms are in front. Black et al. 2021, "GPT-Neo" (doi
10.5281/zenodo.5297715): scores are not scaled, every second block has a window (Beltagy et al.
2020, "Longformer", §3.1, arXiv 2004.05150), backwards only. Zhang et al. 2022, "OPT: Open
Pre-trained Transformer Language Models", §2.1 (arXiv 2205.01068): GPT-3's decoder with ReLU; the
350M model has its norms behind and narrower embeddings between two projections. Cross-attention
follows `transformers`' `add_cross_attention`: a third sub-layer between the two.
Checkpoints: `model_type: openai-gpt`, `gpt2` (also those of 2019 whose names lack the prefix
`transformer.`), `gpt_neo` and `opt`; `gpt2` also as the decoder of `vision-encoder-decoder`.

Legend: R rows, T new positions, D width, E width of the embeddings, V vocabulary.

Differences from `transformers`: inference only; cross-attention keys and values are computed once;
`Conv1D` weights are stored as those of linear layers; GPT-1 has a cache, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

from torch import Tensor, nn

from export.architecture import Architecture
from export.config.config_reader import ConfigReader
from export.config.weight_names import Names, Rename, WeightLayout, projections, with_and_without
from export.decoder_graphs.language_model import DecoderConfig, language_model
from export.layers.attention.attention import CrossAttention
from export.layers.attention.cached_attention import CachedAttention
from export.layers.attention.heads import Heads
from export.layers.blocks import MLP, DecoderBlock
from export.layers.decoder import TransformerDecoder, output_name, output_table
from export.text_encoders.decoder_heads import with_answers
from inference.errors import CheckpointError

# ---------------------------------------------------------------------------------------- config


@dataclass(frozen=True, kw_only=True)
class Config(DecoderConfig):
    """The network's part of `config.json`.

    Attributes:
        has_cross: Whether the blocks look at a source.
        embedding_width: E; D when not given.
        unused_places: Rows of the position table before that of position 0.
    """

    has_cross: bool = False
    embedding_width: int | None = None
    unused_places: int = 0
    is_norm_first: bool = True
    lacks_final_norm: bool = False
    has_norm_weights: bool = True

    @property
    def has_final_norm(self) -> bool:
        """Whether a norm follows the last block."""
        return self.is_norm_first and not self.lacks_final_norm


GPT_NAMES = {
    "max_position_embeddings": "n_positions",
    "num_hidden_layers": "n_layer",
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "hidden_act": "activation_function",
}
"""Names of fields in most families → in GPT-1 and GPT-2."""
_NEO_NAMES = {"num_attention_heads": "num_heads", "hidden_act": "activation_function"}
_OPT_NAMES = {"intermediate_size": "ffn_dim", "hidden_act": "activation_function"}
_GPT1_ACTIVATIONS = {"gelu": "gelu_new", "relu": "relu", "silu": "silu", "swish": "silu"}
"""Names of this family → ours: its `gelu` is the one through tanh."""


def read_gpt1(values: Mapping[str, Any]) -> Config:
    """The configuration.

    Raises:
        CheckpointError: an activation that this family does not have.
    """
    defaults = {"vocab_size": 40478, "max_position_embeddings": 512}
    reader = ConfigReader(values, defaults=defaults, names=GPT_NAMES)
    heads = reader.read(Heads)
    name = reader.text("afn", "gelu")
    if name not in _GPT1_ACTIVATIONS:
        raise CheckpointError(
            f"{reader.place}: afn = {name!r} is not supported; supported are: "
            f"{', '.join(_GPT1_ACTIVATIONS)}"
        )
    return reader.read(
        Config,
        layers=(heads,) * reader.layers("num_hidden_layers"),
        mlp_width=4 * heads.model_width,
        activation=_GPT1_ACTIVATIONS[name],
        is_norm_first=False,
    )


def read_gpt2(reader: ConfigReader, *, has_cross: bool = False) -> Config:
    """The configuration; what we lack is refused."""
    reader.refuse_unless(add_cross_attention=has_cross, cross_attention_hidden_size=None)
    reader = ConfigReader(reader.values, reader.place, {"hidden_act": "gelu_new"}, GPT_NAMES)
    is_scaled = reader.flag("scale_attn_weights", True)
    heads = reader.read(Heads, scale=None if is_scaled else 1.0)
    layers = (heads,) * reader.layers("num_hidden_layers")
    if reader.flag("scale_attn_by_inverse_layer_idx", False):  # scores are also divided by i + 1
        scales = (heads.score_scale / (layer + 1) for layer in range(len(layers)))
        layers = tuple(replace(heads, scale=scale) for scale in scales)
    mlp_width = reader.integer("intermediate_size", 4 * heads.model_width)
    return reader.read(Config, layers=layers, mlp_width=mlp_width, has_cross=has_cross)


def read_gpt_neo(values: Mapping[str, Any]) -> Config:
    """The configuration."""
    defaults = {"max_position_embeddings": 2048, "hidden_act": "gelu_new"}
    reader = ConfigReader(values, defaults=defaults, names=_NEO_NAMES)
    heads = reader.read(Heads, bias=False, scale=1.0)
    window, kinds = reader.integer("window_size", 256), _attention_kinds(reader)
    return reader.read(
        Config,
        layers=tuple(replace(heads, window=window if kind == "local" else None) for kind in kinds),
        mlp_width=reader.integer("intermediate_size", 4 * heads.model_width),
    )


def _attention_kinds(reader: ConfigReader) -> list[str]:
    """`global` or `local` for each layer: `attention_types` is [[kinds, how often], …].

    Files also list them by layer, in `attention_layers`, which takes precedence.

    Raises:
        CheckpointError: another kind, or not one for each layer.
    """
    count = reader.layers("num_layers")
    types = reader.values.get("attention_types") or [[["global", "local"], 12]]
    try:
        listed = (
            kind for group, times in types for _ in range(min(times, count + 1)) for kind in group
        )
        kinds = list(islice(listed, count + 1))  # no longer, whatever the file says
    except (TypeError, ValueError):
        kinds = []
    # `transformers` makes the whole list of it, although the other field takes precedence.
    is_longer = "attention_types" in reader.given and len(kinds) > count
    kinds = reader.values.get("attention_layers") or kinds
    is_list = isinstance(kinds, list) and len(kinds) == count
    if is_longer or not is_list or not all(kind in ["global", "local"] for kind in kinds):
        raise CheckpointError(
            f"{reader.place}: attention_types and attention_layers must give `global` or "
            f"`local` for each of {count} layers, not {types!r} and "
            f"{reader.values.get('attention_layers')!r}"
        )
    return kinds


def read_opt(values: Mapping[str, Any]) -> Config:
    """The configuration; the position table begins with two rows of fairseq's padding."""
    defaults = {"max_position_embeddings": 2048, "hidden_act": "relu"}
    reader = ConfigReader(values, defaults=defaults, names=_OPT_NAMES)
    bias = reader.flag("enable_bias", True)
    heads = reader.read(Heads, bias=bias, out_bias=bias)
    return reader.read(
        Config,
        layers=(heads,) * reader.layers("num_hidden_layers"),
        norm_epsilon=1e-5,
        embedding_width=reader.integer("word_embed_proj_dim", heads.model_width),
        unused_places=2,
        is_norm_first=reader.flag("do_layer_norm_before", True),
        lacks_final_norm=reader.flag("_remove_final_layer_norm", False),
        has_norm_weights=reader.flag("layer_norm_elementwise_affine", True),
    )


# ---------------------------------------------------------------------------------------- blocks


def make_norm(config: Config) -> nn.LayerNorm:
    """The norm of every sub-layer."""
    affine = config.has_norm_weights
    return nn.LayerNorm(config.width, config.norm_epsilon, elementwise_affine=affine)


def make_block(config: Config, heads: Heads) -> DecoderBlock:
    """Causal self-attention, cross-attention where there is a source, and MLP."""
    return DecoderBlock(
        CachedAttention(heads),
        MLP(config.width, config.mlp_width, config.activation, bias=heads.out_bias),
        partial(make_norm, config),
        CrossAttention(heads) if config.has_cross else None,
        is_norm_first=config.is_norm_first,
    )


# --------------------------------------------------------------------------------------- network


class GPT(TransformerDecoder):
    """Tokens and, with `has_cross`, a source's keys and values → scores of the next token."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.layers[0]
        self.vocabulary_size = config.vocabulary_size
        self.unused_places = config.unused_places
        width, inner = config.width, config.embedding_width or config.width
        self.tokens = nn.Embedding(config.vocabulary_size, inner)
        self.positions = nn.Embedding(config.positions + config.unused_places, width)
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
        places = (positions + self.unused_places).clamp(max=self.positions.num_embeddings - 1)
        return x + self.positions(places)

    def finish(self, x: Tensor) -> Tensor:
        """(R, T, D) → (R, T, E)."""
        return self.narrow(self.norm(x))


# ----------------------------------------------------------------------------------------- names

_ENDS: Names = {"wte": "tokens", "wpe": "positions", "ln_f": "norm"}
_NORMS: Names = {"h.*.ln_1": "blocks.*.attention_norm", "h.*.ln_2": "blocks.*.mlp_norm"}


def _masks(attention: str) -> Names:
    """Causal masks that old versions stored."""
    return {f"h.*.{attention}.{mask}": None for mask in ("bias", "masked_bias")}


def _conv1d(*targets: str) -> WeightLayout:
    return WeightLayout(tuple(f"blocks.*.{target}" for target in targets), is_transposed=True)


_CONV1D: Names = {
    **_NORMS,
    "h.*.attn.c_attn": _conv1d("attention.query", "attention.key", "attention.value"),
    "h.*.attn.c_proj": _conv1d("attention.out"),
    "h.*.mlp.c_fc": _conv1d("mlp.up"),
    "h.*.mlp.c_proj": _conv1d("mlp.down"),
    **_masks("attn"),
}
_GPT1: Names = {
    "tokens_embed": "tokens",
    "positions_embed": "positions",
    "position_ids": None,
    **_CONV1D,
}
_GPT2: Names = {
    **_ENDS,
    **_CONV1D,
    "h.*.ln_cross_attn": "blocks.*.cross_norm",
    "h.*.crossattention.q_attn": _conv1d("cross.query"),
    "h.*.crossattention.c_attn": _conv1d("cross.key", "cross.value"),
    "h.*.crossattention.c_proj": _conv1d("cross.out"),
    **_masks("crossattention"),
}
_GPT_NEO: Names = {
    **_ENDS,
    **_NORMS,
    **projections("h.*.attn.attention", "blocks.*.attention"),
    **_masks("attn.attention"),
    "h.*.mlp.c_fc": "blocks.*.mlp.up",
    "h.*.mlp.c_proj": "blocks.*.mlp.down",
}
_OPT: Names = {
    "decoder.embed_tokens": "tokens",
    "decoder.embed_positions": "positions",
    "decoder.version": None,  # which fairseq stored
    "decoder.project_in": "widen",
    "decoder.project_out": "narrow",
    "decoder.final_layer_norm": "norm",
    "decoder.layers.*.self_attn_layer_norm": "blocks.*.attention_norm",
    **projections("decoder.layers.*.self_attn", "blocks.*.attention"),
    "decoder.layers.*.final_layer_norm": "blocks.*.mlp_norm",
    "decoder.layers.*.fc1": "blocks.*.mlp.up",
    "decoder.layers.*.fc2": "blocks.*.mlp.down",
}


def rename(config: Config, theirs: str, ours: str) -> Names:
    """GPT-2's table below a prefix on either side."""
    head = {f"{theirs}lm_head.weight": f"{ours}{output_name(is_tied=config.has_tied_output)}"}
    return Rename(_GPT2).prefixed(f"{theirs}transformer.", ours) | head


# ---------------------------------------------------------------------------------- declarations


def _declare(
    name: str, read_config: Callable[[Mapping[str, Any]], Config], prefix: str, table: Names
) -> Architecture:
    """One family.

    Args:
        prefix: Of its names, which a bare model's lack.
    """
    return language_model(name, read_config, GPT, with_and_without(prefix, table))


GPT1 = _declare("gpt1", read_gpt1, "transformer.", _GPT1)
GPT2 = with_answers(
    _declare("gpt2", lambda values: read_gpt2(ConfigReader(values)), "transformer.", _GPT2)
)
GPT_NEO = with_answers(_declare("gpt_neo", read_gpt_neo, "transformer.", _GPT_NEO))
OPT = with_answers(_declare("opt", read_opt, "model.", _OPT))
