"""What captioners over a small CNN share: their configuration and source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from export.config.config_reader import key
from export.decoder_graphs.source import Source, image_source
from export.layers.images.convolutions import Convolutions
from export.layers.images.vision import prepare_tower
from inference.bundle.inputs import ImageSpec
from inference.bundle.manifest import Limits


@dataclass(frozen=True)
class CaptionerConfig:
    """Sizes of the CNN, of words, and of an LSTM."""

    convolutions: Convolutions = key()
    vocabulary_size: int = key("vocab_size")
    word_width: int = key("embedding_size")
    hidden_width: int = key("hidden_size")
    max_tokens: int = key("max_tokens")
    """Longest caption in training; an LSTM has no position table."""

    @property
    def limits(self) -> Limits:
        """Prompt and caption together."""
        return Limits(max_total_tokens=self.max_tokens)


def prepare_source(model: Any, image: ImageSpec | None) -> Source:
    """The images of a captioner, whose encoder is prepared for them."""
    image = prepare_tower(model.encoder, image)
    return image_source(image, model.config.convolutions.cells)
