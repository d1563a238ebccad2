"""Scenes as the service receives them, and weights laid over them."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from benchmarks.figures import style
from examples.demo.encoders import PICTURES

_FAINT = 0.12  # of a region without attention


def scene(name: str) -> Image.Image:
    """One of the demo's pictures."""
    return Image.open(PICTURES / name).convert("RGB")


def lit(picture: Image.Image, weights: ArrayLike) -> NDArray[Any]:
    """The picture, pale where the weights (rows, columns) are small: (height, width, 3), 0 to 1."""
    pixels = np.asarray(picture, float) / 255
    grid = np.asarray(weights, float)
    cell = np.ones((pixels.shape[0] // grid.shape[0], pixels.shape[1] // grid.shape[1]))
    strength = _FAINT + (1 - _FAINT) * np.kron(grid / grid.max(), cell)
    return 1 - (1 - pixels) * strength[..., None]


def show(axis: Axes, pixels: ArrayLike, title: str = "") -> None:
    """An image without ticks, in a thin frame."""
    axis.imshow(pixels, interpolation="nearest")
    axis.set_title(title)
    axis.set_xticks([])
    axis.set_yticks([])
    style.frame(axis, "lightgray")
