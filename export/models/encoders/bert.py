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
from typing import Any

from torch import Tensor, nn

from export.architecture import LimitedByPositions
from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Names, Rename, bert_block, with_and_without
from export.layers.blocks import BASE, BlockConfig, EncoderBlock, make_encoder_blocks
from export.text_encoders.declaration import class_names, masked_names, text_architecture
from export.text_encoders.heads import HeadConfig, HeadKind, read_head
from export.text_encoders.network import TextEncoder, TextModel, with_heads

# ---------------------------------------------------------------------------------------- config


@dataclass(frozen=True, kw_only=True)
class Config(LimitedByPositions, BlockConfig):
    """The encoder and its head."""

    supported = {
        "is_decoder": False,
        "add_cross_attention": False,
        "position_embedding_type": "absolute",
    }
    vocabulary_size: int = key("vocab_size", 30522)
    positions: int = key("max_position_embeddings", 512)
    segment_types: int = key("type_vocab_size", 2)
    head: HeadConfig


def read_config(values: Mapping[str, Any], place: str = "config.json") -> Config:
    """The configuration; defaults are `transformers`' own."""
    reader = ConfigReader(values, place, BASE)
    return reader.read(Config, head=read_head(reader, "Bert", tuple(HeadKind)))


# --------------------------------------------------------------------------------------- network


class Embeddings(TextEncoder):
    """Token, position and segment embeddings, summed (figure 2).

    Args:
        table_width: Of the embeddings, where it is not D.
    """

    def __init__(self, config: Config, table_width: int | None = None) -> None:
        super().__init__()
        self.width = config.width
        width = config.width if table_width is None else table_width
        self.segment_types = config.segment_types
        self.tokens = nn.Embedding(config.vocabulary_size, width)
        self.positions = nn.Embedding(config.positions, width)
        if config.segment_types:
            self.segments = nn.Embedding(config.segment_types, width)
        self.norm = nn.LayerNorm(width, eps=config.norm_epsilon)

    def embed(self, token_ids: Tensor, segments: Tensor | None) -> Tensor:
        """(B, T), (B, T) → the first block's input, (B, T, D)."""
        x = self.tokens(token_ids) + self.position_vectors(token_ids)
        if segments is not None:
            x = x + self.segments(segments)
        elif self.segment_types:
            x = x + self.segments.weight[0]
        return self.norm(x)

    def position_vectors(self, token_ids: Tensor) -> Tensor:
        """(B, T) → (T, D)."""
        return self.positions.weight[: token_ids.shape[1]]


class Encoder(Embeddings):
    """The embeddings and the blocks; arguments as of `Embeddings`."""

    def __init__(self, config: Config, table_width: int | None = None) -> None:
        super().__init__(config, table_width)
        self.blocks = make_encoder_blocks(config, is_norm_first=False)

    def forward(self, token_ids: Tensor, lengths: Tensor, segments: Tensor | None = None) -> Tensor:
        """(B, T), (B,), (B, T) → (B, T, D)."""
        return self.blocks[-1](self._earlier(token_ids, lengths, segments), lengths)

    def first(self, token_ids: Tensor, lengths: Tensor, segments: Tensor | None = None) -> Tensor:
        """(B, T) → (B, 1, D): the last block computes one position."""
        last = self.blocks[-1]
        assert isinstance(last, EncoderBlock)
        return last.first(self._earlier(token_ids, lengths, segments), lengths)

    def _earlier(self, token_ids: Tensor, lengths: Tensor, segments: Tensor | None) -> Tensor:
        """The last block's input, (B, T, D)."""
        x = self.embed(token_ids, segments)
        for each in self.blocks[:-1]:
            x = each(x, lengths)
        return x


def build(config: Config) -> TextModel:
    """The encoder with its head; classes are read from the first token through the "pooler"."""
    return with_heads(Encoder(config), config, "tanh")


# ----------------------------------------------------------------------------------------- names


EMBEDDINGS: Names = {
    "embeddings.word_embeddings": "encoder.tokens",
    "embeddings.position_embeddings": "encoder.positions",
    "embeddings.LayerNorm": "encoder.norm",
    "embeddings.position_ids": None,
}
"""Without segments."""


def rename(config: Config) -> Rename:
    """`transformers`' names → ours; what another head left in the file is skipped."""
    table = with_and_without("bert.", encoder_names() | pooler_names(config.head))
    return Rename(table | _head_names(config.head))


def encoder_names() -> Names:
    """The encoder's table."""
    theirs, ours = "encoder.layer.*", "encoder.blocks.*"
    return {
        **EMBEDDINGS,
        "embeddings.token_type_embeddings": "encoder.segments",
        **bert_block(theirs, ours),
    }


def pooler_names(head: HeadConfig) -> Names:
    """The hidden layer of classifiers, which other heads do not use."""
    return {"pooler.dense": "classifier.dense" if head.classifies else None}


def _head_names(head: HeadConfig) -> Names:
    names = {"dense": "transform.dense", "norm": "transform.LayerNorm"}
    table = masked_names(head, "cls.predictions", **names)
    table["cls.seq_relationship"] = "classifier.output" if head.relates_sentences else None
    return table | class_names(head)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = text_architecture("bert", read_config, build, rename)
