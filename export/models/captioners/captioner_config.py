"""What captioners over a small CNN share: their configuration and source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from export.config.config_reader import ConfigReader
from export.decoder_graphs.source import Source, image_source
from export.layers.images.convolutions import Convolutions, read_convolutions
from export.layers.images.vision import prepare_tower
from inference.bundle.inputs import ImageSpec
from inference.bundle.manifest import Limits


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
        """
        return cls(
            convolutions=read_convolutions(reader),
            vocabulary_size=reader.integer("vocab_size"),
            word_width=reader.integer("embedding_size"),
            hidden_width=reader.integer("hidden_size"),
            max_tokens=reader.integer("max_tokens"),
            **further,
        )


def prepare_source(model: Any, image: ImageSpec | None) -> Source:
    """The images of a captioner, whose encoder is prepared for them."""
    image = prepare_tower(model.encoder, image)
    return image_source(image, model.config.convolutions.cells)
