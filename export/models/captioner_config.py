"""Configuration that recurrent captioners over a small CNN share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from export.config_reader import ConfigReader
from export.layers.convolutions import Convolutions, read_convolutions
from serving.bundle import Limits


@dataclass(frozen=True)
class CaptionerConfig:
    """Sizes of the CNN, of words, and of an LSTM."""

    convolutions: Convolutions
    vocabulary_size: int
    word_width: int
    hidden_width: int
    max_tokens: int
    """Longest caption in training; an LSTM has no position table."""

    @property
    def limits(self) -> Limits:
        """Prompt and caption together."""
        return Limits(max_total_tokens=self.max_tokens)

    @classmethod
    def read(cls, reader: ConfigReader, **further: int) -> Self:
        """The configuration.

        Args:
            reader: Of `config.json`.
            further: Fields of a subclass.

        Raises:
            CheckpointError: a field is missing or does not fit.
        """
        return cls(
            convolutions=read_convolutions(reader),
            vocabulary_size=reader.integer("vocab_size"),
            word_width=reader.integer("embedding_size"),
            hidden_width=reader.integer("hidden_size"),
            max_tokens=reader.integer("max_tokens"),
            **further,
        )
