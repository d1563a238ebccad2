"""DeBERTa v2 and v3: attention that keeps the contents of tokens and their distances apart.

Papers: He et al. 2020, "DeBERTa: Decoding-enhanced BERT with Disentangled Attention", §3 (arXiv
2006.03654); He et al. 2021, "DeBERTaV3" (arXiv 2111.09543). Version 3 is version 2's network,
trained otherwise.
Checkpoints: `model_type: deberta-v2`.

Legend: B batch, T positions, D width, E width of the embeddings, S buckets of distances to one
side. The attention is `export/layers/attention/disentangled.py`, which also says how it differs
from that of `transformers`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Names, Rename, bert_block, with_and_without
from export.layers.activation import activation
from export.layers.attention.attention import within
from export.layers.attention.disentangled import DisentangledAttention, Distances, DistanceTable
from export.layers.attention.heads import Heads
from export.layers.blocks import make_encoder_blocks
from export.models.encoders import bert
from export.text_encoders.declaration import class_names, masked_names, text_architecture
from export.text_encoders.heads import HeadConfig, HeadKind, read_head
from export.text_encoders.network import TextEncoder, TextModel, with_heads
from inference.errors import CheckpointError

# ---------------------------------------------------------------------------------------- config

_DEFAULTS = {
    "vocab_size": 128100,
    "num_hidden_layers": 24,
    "hidden_size": 1536,
    "num_attention_heads": 24,
    "intermediate_size": 6144,
    "layer_norm_eps": 1e-7,
}


@dataclass(frozen=True)
class Convolution:
    """A convolution beside the first block (version 2)."""

    kernel: int
    groups: int
    activation: str


@dataclass(frozen=True, kw_only=True)
class Config(bert.Config):
    """BERT's, and how positions enter the scores.

    Attributes:
        positions: Of the table; where there is none, of training.
    """

    embedding_width: int
    has_absolute_positions: bool = key("position_biased_input", True)
    distances: Distances | None
    convolution: Convolution | None
    pooler_activation: str = key("pooler_hidden_act", "gelu")
    has_legacy_head: bool = key("legacy", True)


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; defaults are `transformers`' own."""
    reader = ConfigReader(values, defaults=_DEFAULTS)
    heads = reader.read(Heads)
    width = heads.model_width
    reader.refuse_unless(attention_head_size=heads.width, pooler_hidden_size=width)
    types = _attention_types(reader)
    kinds = 1 + ("c2p" in types) + ("p2c" in types)
    config = reader.read(
        Config,
        segment_types=reader.index("type_vocab_size", 0),
        embedding_width=reader.integer("embedding_size", width),
        heads=replace(heads, scale=1 / math.sqrt(heads.width * kinds)),
        distances=_read_distances(reader, types),
        convolution=_read_convolution(reader),
        head=read_head(reader, "DebertaV2", bert.HEADS),
    )
    if not config.has_legacy_head and config.head.fills_masks and config.embedding_width != width:
        raise CheckpointError(f"{reader.place}: legacy = false needs embedding_size = hidden_size")
    return config


def _attention_types(reader: ConfigReader) -> tuple[str, ...]:
    """`pos_att_type`, a list or a text with bars.

    Raises:
        CheckpointError: neither c2p nor p2c.
    """
    listed = reader.values.get("pos_att_type") or []
    types = listed.lower().split("|") if isinstance(listed, str) else listed
    types = tuple(str(each).strip() for each in types)
    if not set(types) <= {"c2p", "p2c"}:
        raise CheckpointError(
            f"{reader.place}: pos_att_type = {listed!r} is not supported, only c2p and p2c"
        )
    return types


def _read_distances(reader: ConfigReader, types: tuple[str, ...]) -> Distances | None:
    if not reader.flag("relative_attention", False):
        return None
    farthest = reader.integer("max_relative_positions", -1, least=-1)
    if farthest < 1:
        farthest = reader.integer("max_position_embeddings", 512)
    buckets = reader.integer("position_buckets", -1, least=-1)
    if buckets == 1:
        raise CheckpointError(f"{reader.place}: position_buckets must be at least 2, not 1")
    norms = {norm.strip() for norm in reader.text("norm_rel_ebd", "none").lower().split("|")}
    if not norms <= {"none", "layer_norm"}:
        raise CheckpointError(
            f"{reader.place}: norm_rel_ebd = {reader.values['norm_rel_ebd']!r} is not supported, "
            "only none and layer_norm"
        )
    return Distances(
        span=buckets if buckets > 0 else farthest,
        buckets=buckets > 0,
        farthest=farthest,
        content_to_position="c2p" in types,
        position_to_content="p2c" in types,
        shares_projections=reader.flag("share_att_key", False),
        is_normalised="layer_norm" in norms,
    )


def _read_convolution(reader: ConfigReader) -> Convolution | None:
    kernel = reader.index("conv_kernel_size", 0)
    if not kernel:
        return None
    if kernel % 2 == 0:
        raise CheckpointError(f"{reader.place}: conv_kernel_size must be odd, not {kernel}")
    act = reader.activation("conv_act", "tanh")
    return Convolution(kernel, reader.integer("conv_groups", 1), act)


# --------------------------------------------------------------------------------------- network


class ConvolutionLayer(nn.Module):
    """Neighbouring tokens' embeddings, added to the first block's output."""

    def __init__(self, config: Config, convolution: Convolution) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(
            config.width,
            config.width,
            convolution.kernel,
            padding=convolution.kernel // 2,
            groups=convolution.groups,
        )
        self.activation = activation(convolution.activation)
        self.norm = nn.LayerNorm(config.width, eps=config.norm_epsilon)

    def forward(self, embedded: Tensor, x: Tensor, lengths: Tensor) -> Tensor:
        """Both (B, T, D); padding must not be a neighbour of the last token."""
        inside = within(lengths, x.shape[1])[..., None]
        mixed = self.convolution((embedded * inside).transpose(1, 2)).transpose(1, 2)
        return self.norm(x + self.activation(mixed))


class Encoder(TextEncoder):
    """Embeddings without or with absolute positions, and the blocks."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.width = config.width
        self.segment_types = config.segment_types
        width = config.embedding_width
        self.tokens = nn.Embedding(config.vocabulary_size, width)
        self.positions = (
            nn.Embedding(config.positions, width) if config.has_absolute_positions else None
        )
        if config.segment_types:
            self.segments = nn.Embedding(config.segment_types, width)
        self.widen = nn.Linear(width, config.width, bias=False) if width != config.width else None
        self.norm = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        self.blocks = make_encoder_blocks(config, is_norm_first=False)
        if config.distances is not None:
            table = DistanceTable(
                config.distances,
                width=config.width,
                positions=config.positions,
                norm_epsilon=config.norm_epsilon,
            )
            for block in self.blocks:
                block.attention = DisentangledAttention(config.heads, table)
        convolution = config.convolution
        self.convolution = None if convolution is None else ConvolutionLayer(config, convolution)

    def forward(self, token_ids: Tensor, lengths: Tensor, segments: Tensor | None = None) -> Tensor:
        """(B, T), (B,), (B, T) → (B, T, D)."""
        embedded = self.embed(token_ids, segments)
        x = embedded
        for index, block in enumerate(self.blocks):
            x = block(x, lengths)
            if index == 0 and self.convolution is not None:
                x = self.convolution(embedded, x, lengths)
        return x

    def embed(self, token_ids: Tensor, segments: Tensor | None) -> Tensor:
        """(B, T) → (B, T, D)."""
        x = self.tokens(token_ids)
        if self.positions is not None:
            x = x + self.positions.weight[: token_ids.shape[1]]
        if segments is not None:
            x = x + self.segments(segments)
        elif self.segment_types:
            x = x + self.segments.weight[0]
        if self.widen is not None:
            x = self.widen(x)
        return self.norm(x)


def build(config: Config) -> TextModel:
    """The encoder with its head."""
    head = replace(config.head, is_tied=config.head.is_tied or not config.has_legacy_head)
    return with_heads(Encoder(config), replace(config, head=head), config.pooler_activation)


# ----------------------------------------------------------------------------------------- names

_BLOCK = (
    "attention.self.query_proj attention.self.key_proj attention.self.value_proj "
    "attention.output.dense attention.output.LayerNorm "
    "intermediate.dense output.dense output.LayerNorm"
)


def rename(config: Config) -> Rename:
    """`transformers`' names → ours."""
    theirs, ours = "encoder.layer.*", "encoder.blocks.*"
    table = "encoder.blocks.0.attention.table"  # all layers share it
    encoder: Names = {
        "embeddings.word_embeddings": "encoder.tokens",
        "embeddings.position_embeddings": (
            "encoder.positions" if config.has_absolute_positions else None
        ),
        "embeddings.token_type_embeddings": "encoder.segments",
        "embeddings.embed_proj": "encoder.widen",
        "embeddings.LayerNorm": "encoder.norm",
        "embeddings.position_ids": None,
        "encoder.rel_embeddings": f"{table}.table",
        # without distances `transformers` keeps the norm of their vectors, which it does not use
        "encoder.LayerNorm": f"{table}.norm" if config.distances else None,
        "encoder.conv.conv": "encoder.convolution.convolution",
        "encoder.conv.LayerNorm": "encoder.convolution.norm",
        **bert_block(theirs, ours, _BLOCK),
        f"{theirs}.attention.self.pos_key_proj": f"{ours}.attention.position_key",
        f"{theirs}.attention.self.pos_query_proj": f"{ours}.attention.position_query",
    }
    return Rename(with_and_without("deberta.", encoder) | _head_names(config))


def _head_names(config: Config) -> Names:
    """Both masked-word heads may be in a file; the configuration chooses one."""
    head = config.head
    unused = HeadConfig(HeadKind.BARE)
    legacy, current = (head, unused) if config.has_legacy_head else (unused, head)
    table: Names = {}
    for part, each, dense, norm in (
        ("cls.predictions", legacy, "transform.dense", "transform.LayerNorm"),
        ("lm_predictions.lm_head", current, "dense", "LayerNorm"),
        ("mask_predictions", unused, "dense", "LayerNorm"),
    ):
        names = (f"{part}.{name}" for name in (dense, norm, "decoder", "bias"))
        table |= masked_names(each, *names)
    table["pooler.dense"] = "classifier.dense" if head.classifies else None
    table["mask_predictions.classifier"] = None
    return table | class_names(head)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = text_architecture("deberta-v2", read_config, build, rename)
