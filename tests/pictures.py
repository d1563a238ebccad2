"""Images for tests, and their files."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image


def noise(width: int, height: int, mode: str = "RGB") -> Image.Image:
    """An image without symmetry, so that a swapped axis or a mirrored edge shows."""
    channels = len(Image.new(mode, (1, 1)).getbands())
    shape = (height, width, channels) if channels > 1 else (height, width)
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8), mode)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """The bytes of a file."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def blocks(random: np.random.Generator) -> bytes:
    """A PNG of random blocks, of another size than any model's."""
    pixels = random.integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return encoded(Image.fromarray(pixels.repeat(9, 0).repeat(9, 1)))
