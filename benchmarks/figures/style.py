"""How the figures look: small pictures on white, readable on a dark page too."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no display; before pyplot is imported

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from numpy.typing import ArrayLike
from PIL import Image

_DPI = 120
_COLOURS = 256
SHADES = "Blues"
"""Colour map of weights: white for 0."""

SETTINGS = {
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "legend.frameon": False,
    "lines.linewidth": 1.4,
}


def settings() -> AbstractContextManager[None]:
    """The block that draws and saves."""
    return pyplot.rc_context(SETTINGS)


def canvas(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> Any:
    """A figure of that many inches, and its axes as an array (rows, columns)."""
    size = (width, height)
    return pyplot.subplots(
        rows, columns, figsize=size, squeeze=False, layout="constrained", **options
    )


def matrix(axis: Axes, values: ArrayLike, title: str = "", **options: Any) -> Any:
    """A matrix as shades, its first row on top; returns the image for a colour bar."""
    shown = axis.imshow(values, **{"cmap": SHADES, "interpolation": "nearest", **options})
    axis.set_title(title)
    frame(axis)
    axis.tick_params(length=0)
    return shown


def frame(axis: Axes, colour: str = "black") -> None:
    """Lines on all four sides."""
    axis.spines[:].set_visible(True)
    axis.spines[:].set_color(colour)


def label(axis: Axes, rows: Sequence[str] = (), columns: Sequence[str] = ()) -> None:
    """Words beside the rows and above the columns of a matrix."""
    axis.set_yticks(range(len(rows)), rows)
    axis.set_xticks(range(len(columns)), columns, rotation=90)
    axis.tick_params(labeltop=True, labelbottom=False)


def save(drawn: Canvas, path: Path) -> None:
    """Writes a PNG of few colours, without the time and the versions that made it."""
    buffer = io.BytesIO()
    drawn.savefig(buffer, dpi=_DPI, format="png")
    pyplot.close(drawn)
    path.parent.mkdir(parents=True, exist_ok=True)
    reduced = Image.open(buffer).convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
    reduced.save(path, "PNG", optimize=True)
