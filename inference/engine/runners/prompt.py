"""What a sequence begins with: tokens, and a source of text or images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Prompt:
    """Inputs of one sequence.

    Attributes:
        token_ids: (T,) int64, T >= 1: the decoder's start tokens, then the request's prompt.
        source_ids: (S,) int64 encoder tokens, for models with a text encoder.
        pixels: (height, width, 3) uint8, for models with an image encoder; (I, height, width, 3)
            where a prompt holds images.
        image_sizes: (I, 2) height and width of each image, where they differ.
    """

    token_ids: NDArray[np.int64]
    source_ids: NDArray[np.int64] | None = None
    pixels: NDArray[np.uint8] | None = None
    image_sizes: NDArray[np.int64] | None = None

    @property
    def images(self) -> list[NDArray[np.uint8]]:
        """Images that the prompt holds; [] for models that take one image or none."""
        return images_of(self.pixels, self.image_sizes)


def images_of(
    pixels: NDArray[np.uint8] | None, sizes: NDArray[np.int64] | None = None
) -> list[NDArray[np.uint8]]:
    """The images of a prompt, (height, width, 3) each; [] for one image, which is no list."""
    if pixels is None or pixels.ndim != 4:
        return []
    if sizes is None:
        return list(pixels)
    pairs = zip(pixels, sizes.tolist(), strict=True)
    return [image[:height, :width] for image, (height, width) in pairs]
