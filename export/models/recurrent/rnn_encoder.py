"""Recurrent encoders of texts, for classes, tags and vectors.

Papers: those of `export/layers/recurrence/cells.py`; both directions: Schuster & Paliwal 1997; many
to one and one to one as in Graves 2012, "Supervised Sequence Labelling", §3.
Checkpoints: `model_type: rnn-encoder`, our own format; `transformers` has no such model. Tensors
have the names of `torch.nn.Embedding`, `RNN`, `LSTM` or `GRU` and `Linear` in a module with the
attributes `embedding`, `rnn` and `classifier`; cells that torch lacks are named alike.

Legend: B batch, T positions, E width of a word, H width of a state, N directions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Entry, Rename
from export.layers.recurrence.recurrent_stack import RecurrentConfig
from export.text_encoders.declaration import text_architecture
from export.text_encoders.heads import HeadConfig, HeadKind, read_head
from export.text_encoders.network import SequenceClassifier, TextEncoder, TextModel
from export.text_encoders.pooling import POOLED, PoolingMode, final_states
from inference.bundle.manifest import Limits

# ---------------------------------------------------------------------------------------- config

HEADS = (HeadKind.BARE, HeadKind.SEQUENCE, HeadKind.TOKENS)
FINAL = "final"
"""Pooling of a classifier: the state behind the last word, and before the first one leftward."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """The network's part of `config.json`."""

    recurrent: RecurrentConfig = key()
    is_bidirectional: bool = key("bidirectional", False)
    pooling: str = key("pooling", FINAL, "choice", supported=(FINAL, "mean", "max"))
    head: HeadConfig

    @property
    def limits(self) -> Limits:
        """Of one text."""
        return Limits(max_input_tokens=self.recurrent.max_positions)


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration."""
    reader = ConfigReader(values)
    return reader.read(Config, head=read_head(reader, "Rnn", HEADS))


# --------------------------------------------------------------------------------------- network


class Encoder(TextEncoder):
    """Words → states."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        sizes = config.recurrent
        self.tokens = nn.Embedding(sizes.vocabulary_size, sizes.word_width)
        self.rnn = sizes.stack(is_bidirectional=config.is_bidirectional)
        self.width = self.rnn.output_width

    def forward(self, token_ids: Tensor, lengths: Tensor, segments: Tensor | None = None) -> Tensor:
        """(B, T), (B,) → (B, T, N·H)."""
        return self.rnn(self.tokens(token_ids), lengths)


def build(config: Config) -> TextModel:
    """The encoder with its head."""
    encoder = Encoder(config)
    pool: Callable[[Tensor, Tensor], Tensor]
    if config.pooling == FINAL:
        pool = partial(final_states, is_bidirectional=config.is_bidirectional)
    else:
        pool = POOLED[PoolingMode(config.pooling)]
    return TextModel(
        encoder,
        config.head,
        masked=nn.Identity,
        classifier=lambda classes: SequenceClassifier(encoder.width, classes, None, pool),
    )


# ----------------------------------------------------------------------------------------- names


def rename(config: Config) -> Rename:
    """The names of `torch.nn` → ours."""
    table: dict[str, Entry] = {"embedding": "encoder.tokens"}
    names = config.recurrent.tensor_names(is_bidirectional=config.is_bidirectional)
    table |= {f"rnn.{theirs}": f"encoder.rnn.{ours}" for theirs, ours in names.items()}
    heads = {HeadKind.SEQUENCE: "classifier.output", HeadKind.TOKENS: "tagger"}
    table["classifier"] = heads.get(config.head.kind)
    return Rename(table)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = text_architecture("rnn_encoder", read_config, build, rename)
