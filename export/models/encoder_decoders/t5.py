"""T5: an encoder-decoder with relative positions; every task is text to text.

Paper: Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
Transformer", §2.1 (arXiv 1910.10683); gated MLP of v1.1: Shazeer 2020, "GLU Variants Improve
Transformer" (arXiv 2002.05202).
Checkpoints: `t5-*`, `google/t5-v1_1-*`, `google/flan-t5-*` (`model_type: t5`), `google/mt5-*`
(`mt5`: Xue et al. 2021, arXiv 2010.11934) and `google/umt5-*` (`umt5`, at the end of this file).

Legend: B batch, R decoder rows, T new positions, P past positions, S source positions, H heads,
K width of a head, D model width, V vocabulary.

Differences from Vaswani et al. 2017: norms in front, without mean and bias; no bias in any linear
layer; scores are not scaled; no position embeddings, but a bias of the scores that all layers of a
stack share; heads may be wider or narrower than D / H. v1.0 multiplies the last hidden state by
D^-0.5 before the tied output; v1.1 and mT5 do not, and have an output table of their own. In UMT5
each layer has a bias of its own, and the last hidden state is multiplied whatever the file says of
ties, as in `transformers`.
Differences from `transformers`: inference only; cross-attention keys and values are computed once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from export.architecture import Architecture, no_section
from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Entry, Rename
from export.decoder_graphs.transformer import alignment, text_to_text_graphs
from export.layers.attention.attention import CrossAttention, SelfAttention
from export.layers.attention.cached_attention import CachedAttention
from export.layers.attention.heads import Heads, KeyValue, Rows
from export.layers.attention.positions import RelativePositions
from export.layers.blocks import MLP, DecoderBlock, EncoderBlock, GatedMLP, RMSNorm
from export.layers.decoder import TransformerDecoder, tied_logits
from export.text_encoders.decoder_heads import with_answers
from export.tokenizer.languages import prefix_section, translation_prefixes
from inference.bundle.manifest import Limits
from inference.errors import CheckpointError

POSITIONS = 2048
"""Limit of source and output. No table bounds them: distances of `farthest` and more share a bucket
(128 tokens in all published checkpoints, which were trained with 512 and 1024 tokens)."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """The network's part of `config.json`."""

    vocabulary_size: int = key("vocab_size")
    width: int
    heads: Heads
    mlp_width: int = key("d_ff")
    activation: str
    is_gated: bool
    encoder_layers: int
    decoder_layers: int
    buckets: int
    farthest: int
    epsilon: float = key("layer_norm_epsilon", 1e-6)
    output_scale: float
    """Factor of the last hidden state before the output table."""
    has_own_biases: bool = False
    """Whether each layer has a bias, which otherwise all layers of a stack share."""
    translates: bool
    """Whether `task_specific_params` has prefixes of translations."""

    @property
    def limits(self) -> Limits:
        """The same for both sides."""
        return Limits(max_input_tokens=POSITIONS, max_total_tokens=POSITIONS)


_DEFAULTS = {"num_heads": 6, "num_layers": 8}
"""Of mT5 and UMT5."""


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; unsupported fields that would change the network are refused."""
    is_first = values.get("model_type", "t5") == "t5"
    reader = ConfigReader(values, defaults={} if is_first else _DEFAULTS)
    reader.refuse_unless(is_encoder_decoder=True)
    reader.refuse_heads("ForConditionalGeneration", "WithLMHeadModel")
    width, count = reader.integer("d_model"), reader.integer("num_heads", 8)
    layers = reader.layers("num_layers", 6)
    gate, name = _activation(reader)
    buckets, farthest = read_distances(reader)
    return reader.read(
        Config,
        width=width,
        heads=Heads(
            width,
            count,
            bias=False,
            out_bias=False,
            scale=1.0,
            head_width=reader.integer("d_kv", 64),
        ),
        activation=name,
        is_gated=gate,
        encoder_layers=layers,
        decoder_layers=reader.layers("num_decoder_layers", layers),
        buckets=buckets,
        farthest=farthest,
        output_scale=width**-0.5 if _is_output_scaled(reader) else 1.0,
        has_own_biases=reader.text("model_type", "t5") == "umt5",
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
    default = "relu" if reader.text("model_type", "t5") == "t5" else "gated-gelu"
    given = reader.text("feed_forward_proj", default)
    name = given.removeprefix("gated-")
    is_gated = name != given
    # As `transformers`: the gated form of v1.1 means the approximation through tanh.
    name = "gelu_new" if is_gated and name == "gelu" else name
    return reader.flag("is_gated_act", is_gated), reader.text("dense_act_fn", name)


def _is_output_scaled(reader: ConfigReader) -> bool:
    """Of T5 and UMT5: v1.1 announces by untied embeddings that it does not scale.

    `transformers` writes `scale_decoder_outputs` since it ties by value.
    """
    kind = reader.text("model_type", "t5")
    if kind != "t5":
        return kind == "umt5"
    return reader.flag("scale_decoder_outputs", reader.flag("tie_word_embeddings", True))


# ---------------------------------------------------------------------------------------- blocks


def make_encoder_block(config: Config) -> EncoderBlock:
    """Norm, self-attention, norm and MLP, each pair with a residual."""
    norm = partial(RMSNorm, config.width, config.epsilon)
    attention, mlp = SelfAttention(config.heads), make_mlp(config)
    if config.has_own_biases:
        relative = relative_positions(config, is_bidirectional=True)
        return BiasedEncoderBlock(relative, attention, mlp, norm, is_norm_first=True)
    return EncoderBlock(attention, mlp, norm, is_norm_first=True)


def make_decoder_block(config: Config) -> DecoderBlock:
    """The same, with cross-attention between."""
    norm = partial(RMSNorm, config.width, config.epsilon)
    parts = CachedAttention(config.heads), make_mlp(config), norm, CrossAttention(config.heads)
    if config.has_own_biases:
        relative = relative_positions(config, is_bidirectional=False)
        return BiasedDecoderBlock(relative, *parts, is_norm_first=True)
    return DecoderBlock(*parts, is_norm_first=True)


def make_mlp(config: Config) -> MLP:
    """Plain (v1.0) or gated (v1.1)."""
    kind = GatedMLP if config.is_gated else MLP
    return kind(config.width, config.mlp_width, config.activation, bias=False)


class BiasedEncoderBlock(EncoderBlock):
    """A block with a bias of its own."""

    def __init__(self, relative: RelativePositions, *parts: Any, is_norm_first: bool) -> None:
        super().__init__(*parts, is_norm_first=is_norm_first)
        self.relative = relative

    def forward(
        self, x: Tensor, lengths: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """(B, S, D) → (B, S, D); there is no other bias."""
        positions = torch.arange(x.shape[1])
        return super().forward(x, lengths, self.relative(positions[None], positions))


class BiasedDecoderBlock(DecoderBlock):
    """A block with a bias of its own."""

    def __init__(self, relative: RelativePositions, *parts: Any, is_norm_first: bool) -> None:
        super().__init__(*parts, is_norm_first=is_norm_first)
        self.relative = relative

    def self_attention(
        self, x: Tensor, rows: Rows, past: KeyValue, bias: Tensor | None = None
    ) -> tuple[Tensor, KeyValue]:
        """The first sub-layer; there is no other bias: (R, T, D) and the cache."""
        bias = self.relative(rows.positions(x.shape[1]), torch.arange(past[0].shape[2]))
        return super().self_attention(x, rows, past, bias)


def shared_positions(config: Config, *, is_bidirectional: bool) -> RelativePositions | None:
    """The bias that all layers of a stack share; None where each has one."""
    if config.has_own_biases:
        return None
    return relative_positions(config, is_bidirectional=is_bidirectional)


def relative_positions(config: Config, *, is_bidirectional: bool) -> RelativePositions:
    """A bias of scores by distance."""
    return RelativePositions(
        config.heads.count, config.buckets, config.farthest, is_bidirectional=is_bidirectional
    )


# --------------------------------------------------------------------------------------- network


class Encoder(nn.Module):
    """Source tokens → source representations."""

    def __init__(self, config: Config, tokens: nn.Embedding) -> None:
        super().__init__()
        self.tokens = tokens
        self.relative = shared_positions(config, is_bidirectional=True)
        self.blocks = nn.ModuleList(
            make_encoder_block(config) for _ in range(config.encoder_layers)
        )
        self.norm = RMSNorm(config.width, config.epsilon)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B, S) → (B, S, D); values at padding are meaningless."""
        return self.read(self.embed(tokens), tokens, lengths)

    def embed(self, tokens: Tensor) -> Tensor:
        """(B, S) → (B, S, D)."""
        return self.tokens(tokens)

    def read(self, x: Tensor, tokens: Tensor, lengths: Tensor) -> Tensor:
        """What `forward` computes of embeddings (B, S, D); positions depend on no token."""
        positions = torch.arange(x.shape[1])
        bias = self.relative(positions[None], positions) if self.relative else None  # (1, H, S, S)
        for block in self.blocks:
            x = block(x, lengths, bias)
        return self.norm(x)


class Decoder(TransformerDecoder):
    """Target tokens and the source's keys and values → scores of the next token."""

    def __init__(self, config: Config, tokens: nn.Embedding) -> None:
        super().__init__()
        self.heads = config.heads
        self.vocabulary_size = config.vocabulary_size
        self.tokens = tokens
        self.relative = shared_positions(config, is_bidirectional=False)
        self.blocks = nn.ModuleList(
            make_decoder_block(config) for _ in range(config.decoder_layers)
        )
        self.norm = RMSNorm(config.width, config.epsilon)
        self.output_scale = config.output_scale
        self.output = nn.Parameter(torch.zeros(config.vocabulary_size, config.width))

    def position_bias(self, positions: Tensor, room: int) -> Tensor | None:
        """(R, T) positions → (R, H, T, P)."""
        return self.relative(positions, torch.arange(room)) if self.relative else None

    def logits(self, hidden: Tensor) -> Tensor:
        """(R, D) → (R, V)."""
        return tied_logits(hidden * self.output_scale, self.output)


class T5(nn.Module):
    """Both stacks over one table of tokens."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        tokens = nn.Embedding(config.vocabulary_size, config.width)
        self.encoder = Encoder(config, tokens)
        self.decoder = Decoder(config, tokens)


# ----------------------------------------------------------------------------------------- names

_PROJECTIONS = {"q": "query", "k": "key", "v": "value", "o": "out"}


def rename(config: Config) -> Rename:
    """`transformers`' names → ours; a block's sub-layers are numbered there."""
    tokens = "encoder.tokens"
    table: dict[str, Entry] = {
        "shared": tokens,
        "encoder.embed_tokens": tokens,
        "decoder.embed_tokens": tokens,
        "lm_head.weight": "decoder.output",
        # Old files hold a bias of cross-attention that nothing reads.
        "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias": None,
    }
    for side, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        table[f"{side}.final_layer_norm"] = f"{side}.norm"
        for block in range(layers if config.has_own_biases else 1):
            bias = f"{side}.block.{block}.layer.0.SelfAttention.relative_attention_bias"
            place = f"{side}.blocks.{block}" if config.has_own_biases else side
            table[bias] = f"{place}.relative.bias"
        sublayers = ["attention", "cross", "mlp"] if side == "decoder" else ["attention", "mlp"]
        for block in range(layers):
            for number, ours in enumerate(sublayers):
                theirs = f"{side}.block.{block}.layer.{number}"
                table |= _sublayer(theirs, f"{side}.blocks.{block}", ours, config)
    return Rename(table, tied={"decoder.output": f"{tokens}.weight"})


def _sublayer(theirs: str, block: str, ours: str, config: Config) -> dict[str, Entry]:
    """One sub-layer of a block and its norm."""
    table: dict[str, Entry] = {f"{theirs}.layer_norm": f"{block}.{ours}_norm"}
    if ours == "mlp":
        inner = f"{theirs}.DenseReluDense"
        up = {"wi_0": "gate", "wi_1": "up"} if config.is_gated else {"wi": "up"}
        names = {**up, "wo": "down"}
    else:
        inner = f"{theirs}.{'SelfAttention' if ours == 'attention' else 'EncDecAttention'}"
        names = _PROJECTIONS
    return table | {f"{inner}.{name}": f"{block}.{ours}.{own}" for name, own in names.items()}


def tasks_of(config: Config) -> Sequence[str]:
    """Text to text always; translation where the checkpoint lists its prefixes."""
    return ("generate", "translate") if config.translates else ("generate",)


# ----------------------------------------------------------------------------------- declaration

_T5 = Architecture(
    name="t5",
    tasks={"generate": no_section, "translate": prefix_section},
    read_config=read_config,
    build=T5,
    rename=rename,
    graphs=lambda model, image: text_to_text_graphs(model, model.encoder.tokens),
    details=lambda network: alignment(network.decoder),
    tasks_of=tasks_of,
)
ARCHITECTURE = with_answers(_T5, start=0)

UMT5 = with_answers(
    replace(
        _T5, name="umt5", read_config=lambda values: read_config({"model_type": "umt5", **values})
    ),
    start=0,
)
"""Chung et al. 2023, "UniMax: Fairer and More Effective Language Sampling for Large-Scale
Multilingual Pretraining", §4.2 (arXiv 2304.09151): `google/umt5-*`."""
