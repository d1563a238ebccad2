"""Images that are padded to a square and then resized, as OWLv2 reads them.

The published code resizes with scikit-image, and `Owlv2ImageProcessorPil` with the same steps: a
Gaussian blur against aliasing and linear interpolation between pixels, both mirrored at the edges.
Both are linear and the same for rows and columns, so an axis is one product with a band of weights;
padding adds nothing to it and is never made.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image

Floats = npt.NDArray[np.float32]

_ROWS = 32
"""Of the output, of one product: the band of more is mostly zero."""
_DEVIATIONS = 4.0
"""Of the Gaussian, where it is cut off."""


def pad_and_resize(image: Image.Image, size: tuple[int, int]) -> Floats:
    """An RGB image, with black below or right of it, as (height, width, 3), from 0 to 255."""
    pixels = np.asarray(image, np.uint8)
    side = max(image.size)
    if image.width > image.height:  # the longer axis first: less is left for the other
        resized = _resize_rows(pixels.swapaxes(0, 1), side, size[1]).swapaxes(0, 1)
        resized = _resize_rows(resized, side, size[0])
    else:
        resized = _resize_rows(pixels, side, size[0])
        resized = _resize_rows(resized.swapaxes(0, 1), side, size[1]).swapaxes(0, 1)
    return np.ascontiguousarray(resized)


def _resize_rows(pixels: npt.NDArray[np.uint8] | Floats, side: int, size: int) -> Floats:
    """(rows, columns, 3) → (size, columns, 3), as if black rows made `side` rows of it."""
    places, weights = _taps(side, size)
    weights[places >= len(pixels)] = 0
    resized = np.zeros((size, *pixels.shape[1:]), np.float32)
    for start in range(0, size, _ROWS):
        block = slice(start, start + _ROWS)
        first, last = places[block].min(), min(places[block].max() + 1, len(pixels))
        if first >= last:
            continue
        band = np.zeros((len(places[block]), last - first))
        inside = np.minimum(places[block], last - 1) - first  # what is behind has no weight
        np.add.at(band, (np.arange(len(band))[:, None], inside), weights[block])
        read = pixels[first:last].astype(np.float32)
        resized[block] = np.tensordot(band.astype(np.float32), read, axes=1)
    return resized


def _taps(side: int, size: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Which of `side` pixels each of `size` pixels is made of, and their weights: (size, taps)."""
    deviation = max(0.0, (side / size - 1) / 2)
    radius = int(_DEVIATIONS * deviation + 0.5)
    offsets = np.arange(-radius, radius + 1)
    blur = np.exp(-0.5 * (offsets / deviation) ** 2) if radius else np.ones(1)
    blur /= blur.sum()
    centres = (np.arange(size) + 0.5) * side / size - 0.5
    before = np.floor(centres).astype(np.int64)
    part = (centres - before)[:, None]
    weights = (1 - part) * np.append(blur, 0) + part * np.insert(blur, 0, 0)
    return _mirror(before[:, None] + np.arange(-radius, radius + 2), side), weights


def _mirror(places: npt.NDArray[np.int64], side: int) -> npt.NDArray[np.int64]:
    """Places beyond either edge, mirrored at the edge's pixel, as often as it takes."""
    period = max(2 * (side - 1), 1)
    folded = places % period
    return np.minimum(folded, period - folded) if side > 1 else folded
