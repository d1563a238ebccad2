"""BERT: a bidirectional Transformer, pre-trained on masked words and on pairs of sentences.

Paper: Devlin et al. 2018, "BERT: Pre-training of Deep Bidirectional Transformers for Language
Understanding", §3 (arXiv 1810.04805).
Checkpoints: `model_type: bert`: bare, for masked words and next sentences, classifiers, taggers.

Legend: B batch, T positions, D width.

Differences from `transformers`: texts are given with their lengths instead of a mask; vocabulary
scores are computed at masked positions only; a bare encoder ends in a pooled vector, and its
`pooler` is not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from export.config_reader import ConfigReader
from export.encoding.declaration import text_architecture, text_twin
from export.encoding.heads import HeadConfig, HeadKind, read_head
from export.encoding.network import MaskedTokens, SequenceClassifier, TextEncoder, TextModel
from export.layers.attention import SelfAttention
from export.layers.blocks import EncoderBlock
from export.layers.heads import Heads
from export.layers.mlp import MLP
from export.rename import Entry, Rename
from serving.bundle import Limits

# ---------------------------------------------------------------------------------------- config


@dataclass(frozen=True)
class Config:
    """The encoder and its head."""

    vocabulary_size: int
    positions: int
    segment_types: int
    layers: int
    heads: Heads
    mlp_width: int
    activation: str
    norm_epsilon: float
    head: HeadConfig

    @property
    def width(self) -> int:
        """D."""
        return self.heads.model_width

    @property
    def limits(self) -> Limits:
        """The position table."""
        return Limits(max_input_tokens=self.positions)


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; defaults are `transformers`' own."""
    reader = ConfigReader(values)
    reader.refuse_unless(
        is_decoder=False, add_cross_attention=False, position_embedding_type="absolute"
    )
    width, heads = reader.integer("hidden_size", 768), reader.integer("num_attention_heads", 12)
    reader.divide(width, heads)
    return Config(
        vocabulary_size=reader.integer("vocab_size", 30522),
        positions=reader.integer("max_position_embeddings", 512),
        segment_types=reader.integer("type_vocab_size", 2),
        layers=reader.integer("num_hidden_layers", 12),
        heads=Heads(width, heads),
        mlp_width=reader.integer("intermediate_size", 3072),
        activation=reader.text("hidden_act", "gelu"),
        norm_epsilon=reader.number("layer_norm_eps", 1e-12),
        head=read_head(reader, "Bert", tuple(HeadKind)),
    )


# --------------------------------------------------------------------------------------- network


class Encoder(TextEncoder):
    """Token, position and segment embeddings, summed (figure 2), and the blocks."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.width = config.width
        self.segment_types = config.segment_types
        norm = partial(nn.LayerNorm, config.width, eps=config.norm_epsilon)
        self.tokens = nn.Embedding(config.vocabulary_size, config.width)
        self.positions = nn.Embedding(config.positions, config.width)
        self.segments = nn.Embedding(config.segment_types, config.width)
        self.norm = norm()
        blocks = (
            EncoderBlock(
                SelfAttention(config.heads),
                MLP(config.width, config.mlp_width, config.activation),
                norm,
                is_norm_first=False,
            )
            for _ in range(config.layers)
        )
        self.blocks = nn.ModuleList(blocks)

    def forward(self, token_ids: Tensor, lengths: Tensor, segments: Tensor | None = None) -> Tensor:
        """(B, T), (B,), (B, T) → (B, T, D)."""
        segment = self.segments.weight[0] if segments is None else self.segments(segments)
        positions = self.positions.weight[: token_ids.shape[1]]
        x = self.norm(self.tokens(token_ids) + segment + positions)
        for block in self.blocks:
            x = block(x, lengths)
        return x


def build(config: Config) -> TextModel:
    """The encoder with its head; classes are read from the first token through the "pooler"."""
    encoder = Encoder(config)
    return TextModel(
        encoder,
        config.head,
        masked=lambda: MaskedTokens(
            encoder.tokens,
            config.width,
            config.activation,
            config.norm_epsilon,
            is_tied=config.head.is_tied,
        ),
        classifier=lambda classes: SequenceClassifier(config.width, classes, "tanh"),
    )


# ---------------------------------------------------------------------------------------- rename

_LEAVES = {"gamma": "weight", "beta": "bias"}
"""Norms in checkpoints that were converted from TensorFlow."""


def rename(config: Config) -> Rename:
    """`transformers`' names → ours; what another head left in the file is skipped."""
    encoder = encoder_names("")
    prefixed = {f"bert.{theirs}": ours for theirs, ours in encoder.items()}
    return Rename(encoder | prefixed | _head_names(config.head), leaves=_LEAVES)


def encoder_names(prefix: str) -> dict[str, Entry]:
    """The encoder's table."""
    block, ours = f"{prefix}encoder.layer.*", "encoder.blocks.*"
    return {
        f"{prefix}embeddings.word_embeddings": "encoder.tokens",
        f"{prefix}embeddings.position_embeddings": "encoder.positions",
        f"{prefix}embeddings.token_type_embeddings": "encoder.segments",
        f"{prefix}embeddings.LayerNorm": "encoder.norm",
        f"{prefix}embeddings.position_ids": None,
        f"{block}.attention.self.query": f"{ours}.attention.query",
        f"{block}.attention.self.key": f"{ours}.attention.key",
        f"{block}.attention.self.value": f"{ours}.attention.value",
        f"{block}.attention.output.dense": f"{ours}.attention.out",
        f"{block}.attention.output.LayerNorm": f"{ours}.attention_norm",
        f"{block}.intermediate.dense": f"{ours}.mlp.up",
        f"{block}.output.dense": f"{ours}.mlp.down",
        f"{block}.output.LayerNorm": f"{ours}.mlp_norm",
    }


def _head_names(head: HeadConfig) -> dict[str, Entry]:
    masked = head.fills_masks
    pooler = "classifier.dense" if head.classifies else None
    table: dict[str, Entry] = {
        "bert.pooler.dense": pooler,
        "pooler.dense": pooler,
        "cls.predictions.transform.dense": "masked.dense" if masked else None,
        "cls.predictions.transform.LayerNorm": "masked.norm" if masked else None,
        "cls.predictions.decoder": "masked.output" if masked else None,
        "cls.predictions.bias": "masked.output.bias" if masked else None,
        "cls.seq_relationship": "classifier.output" if head.relates_sentences else None,
    }
    if head.kind is HeadKind.SEQUENCE:
        table["classifier"] = "classifier.output"
    if head.kind is HeadKind.TOKENS:
        table["classifier"] = "tagger"
    return table


# ------------------------------------------------------------------------------------------ twin

_TINY = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 16,
}
_ODD = _TINY | {
    "hidden_size": 30,
    "num_attention_heads": 3,
    "type_vocab_size": 3,
    "layer_norm_eps": 1e-3,
    "hidden_act": "gelu_new",
}
TWIN = text_twin(
    {
        "plain": ("BertModel", _TINY),
        "odd": ("BertModel", _ODD),
        "pretraining": ("BertForPreTraining", _ODD),
        "masked": ("BertForMaskedLM", _TINY | {"vocab_size": 131, "num_hidden_layers": 1}),
        "next-sentence": ("BertForNextSentencePrediction", _TINY),
        "classes": ("BertForSequenceClassification", _ODD | {"num_labels": 3}),
        "relevance": ("BertForSequenceClassification", _TINY | {"num_labels": 1}),
        "one-segment": (
            "BertForSequenceClassification",
            _TINY | {"type_vocab_size": 1, "hidden_act": "relu"},
        ),
        "tags": ("BertForTokenClassification", _TINY | {"num_labels": 5}),
    }
)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = text_architecture("bert", read_config, build, rename, TWIN)
