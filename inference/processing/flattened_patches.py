"""Images as rows of patches, at any aspect ratio, as Pix2Struct, with a text above, and SigLIP 2.

Lee et al. 2022, "Pix2Struct", §2.2 (arXiv 2210.03347): an image is scaled so that as many patches
as possible fit into a budget, and a question is drawn above it. `Pix2StructImageProcessorPil` of
`transformers` has the same steps. It draws with Arial, which it downloads; here the font is the one
that Pillow carries (Aileron, in the public domain), so that nothing is downloaded or shipped.
Tschannen et al. 2025, "SigLIP 2", §2.4 (arXiv 2502.14786), as `Siglip2ImageProcessorPil`.
"""

from __future__ import annotations

import textwrap
from functools import cache
from io import BytesIO
from math import ceil, sqrt

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from inference.bundle.inputs import Patches
from inference.errors import TooLong, UnsupportedImage

Floats = npt.NDArray[np.float32]

MOST_CHARACTERS = 1000
"""Of a text above an image: about 13 lines."""
_MOST_PIXELS = 50_000_000
"""Of an image with its text."""
_LINE, _FONT_SIZE, _MARGIN = 80, 36, 5  # characters, pixels, pixels


def flatten(image: Image.Image, patches: Patches, most: int, resample: int) -> Floats:
    """(most, height · width + 1, 3) of an RGB image: a row for each patch, zeros behind them.

    The last pixel of a row is the patch's row and column, counted from 1, and 0.
    """
    height, width = patches.height, patches.width
    if patches.is_rounded_up:
        rows, columns = rounded_up_grid(image.size, patches, most)
        size = columns * width, rows * height
        resized = image.resize(size, Image.Resampling(resample))
        return _flatten(np.asarray(resized, np.float32), rows, columns, most)
    scale = sqrt(most * (height / image.height) * (width / image.width))
    rows = max(min(int(scale * image.height / height), most), 1)
    columns = max(min(int(scale * image.width / width), most), 1)
    mean, deviation = statistics(image) if patches.is_normalised else (0.0, 1.0)
    # Resizing is linear and keeps a constant, so it may come before normalising, which then takes
    # less memory: a channel at a time, in floats.
    pixels = np.stack([_resize(part, rows * height, columns * width) for part in image.split()])
    pixels = (pixels - np.float32(mean)) / np.float32(deviation)  # (3, …, …)
    return _flatten(pixels.transpose(1, 2, 0), rows, columns, most)


def rounded_up_grid(size: tuple[int, int], patches: Patches, most: int) -> tuple[int, int]:
    """Rows and columns of patches of an image of (width, height): as many as the budget allows.

    The scale is searched in halves, and no larger than 100; where the search ends decides.
    """
    least, largest, grid = 1e-5 / 10, 100.0, (1, 1)
    while largest - least >= 1e-5:
        scale = (least + largest) / 2
        rows = max(ceil(size[1] * scale / patches.height), 1)
        columns = max(ceil(size[0] * scale / patches.width), 1)
        if rows * columns <= most:
            least, grid = scale, (rows, columns)
        else:
            largest = scale
    return grid


def _flatten(pixels: Floats, rows: int, columns: int, most: int) -> Floats:
    """The result of `flatten` for the pixels of rows and columns of whole patches."""
    height, width = pixels.shape[0] // rows, pixels.shape[1] // columns
    parts = pixels.reshape(rows, height, columns, width, 3).swapaxes(1, 2)
    flat: Floats = np.zeros((most, height * width + 1, 3), np.float32)
    flat[: rows * columns, :-1] = parts.reshape(rows * columns, height * width, 3)
    flat[: rows * columns, -1, 0] = np.repeat(np.arange(1, rows + 1), columns)
    flat[: rows * columns, -1, 1] = np.tile(np.arange(1, columns + 1), rows)
    return flat


def statistics(image: Image.Image) -> tuple[float, float]:
    """Mean and standard deviation of all values of an image, the latter not too near 0."""
    counts = np.array(image.histogram(), np.float64).reshape(-1, 256).sum(axis=0)
    total, values = counts.sum(), np.arange(256)
    mean = float(counts @ values / total)
    variance = float(counts @ (values - mean) ** 2 / total)
    return mean, max(sqrt(variance), 1 / sqrt(total))


def with_header(image: Image.Image, text: str) -> Image.Image:
    """An RGB image with a text above it, both as wide as the wider one.

    Raises:
        TooLong: too many characters.
        UnsupportedImage: the whole would have too many pixels, or a part of it none.
    """
    if len(text) > MOST_CHARACTERS:
        raise TooLong(
            f"the text above an image has {len(text)} characters, at most {MOST_CHARACTERS} are "
            "drawn: shorten it"
        )
    header = draw(text)
    width = max(header.width, image.width)
    above = int(header.height * (width / header.width))
    below = int(image.height * (width / image.width))
    if not above * below or width * (above + below) > _MOST_PIXELS:
        sides = f"{image.width}x{image.height}"
        raise UnsupportedImage(f"{sides} has too extreme an aspect ratio for this model: crop it")
    whole = Image.new("RGB", (width, above + below), "white")
    whole.paste(header.resize((width, above)), (0, 0))
    whole.paste(image.resize((width, below)), (0, above))
    return whole


def draw(text: str) -> Image.Image:
    """A text in lines, black on white, with a margin."""
    font = ImageFont.truetype(BytesIO(font_file()), _FONT_SIZE)
    lines = "\n".join(textwrap.wrap(text, _LINE))
    measure = ImageDraw.Draw(Image.new("RGB", (1, 1)))
    _, _, right, bottom = measure.textbbox((0, 0), lines, font=font)
    size = (int(right) + 2 * _MARGIN, int(bottom) + 2 * _MARGIN)
    image = Image.new("RGB", size, "white")
    ImageDraw.Draw(image).text((_MARGIN, _MARGIN), lines, fill="black", font=font)
    return image


@cache
def font_file() -> bytes:
    """The bytes of Pillow's own font."""
    font = ImageFont.load_default(_FONT_SIZE)
    assert isinstance(font, ImageFont.FreeTypeFont), "Pillow was built without FreeType"
    return font.font_bytes


def _resize(channel: Image.Image, height: int, width: int) -> Floats:
    """One channel at another size, without rounding."""
    resized = channel.convert("F").resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(resized, np.float32)
