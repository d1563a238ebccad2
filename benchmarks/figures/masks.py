"""Which keys each query may attend to: the masks that the served models use."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from torch import Tensor

from benchmarks.figures import style
from benchmarks.figures.figure import Facts, Figure, percent
from export.layers.attention.attention import causal, neighbours, within
from export.layers.attention.gated_cross import ImageMask

SIZE = 12
LENGTH = 8  # of the padded sequence
WINDOW = 4
PREFIX = 4
IMAGE = "▣"
WORDS = [IMAGE, "a", "red", "star", IMAGE, "a", "blue", "ring", IMAGE, "a"]
PER_IMAGE = 3  # vectors of each image


@dataclass(frozen=True)
class Measurements:
    """Masks, (queries, keys) bool each."""

    padding: Tensor
    causal: Tensor
    window: Tensor
    neighbours: Tensor
    prefix: Tensor
    images: Tensor


def measure() -> Measurements:
    """Small masks by the functions that the layers call."""
    positions = torch.arange(SIZE)[None]
    return Measurements(
        padding=within(torch.tensor([LENGTH]), SIZE).expand(SIZE, SIZE),
        causal=causal(positions, SIZE, None)[0],
        window=causal(positions, SIZE, WINDOW)[0],
        neighbours=neighbours(SIZE, WINDOW),
        prefix=behind_prefix(SIZE, PREFIX),
        images=last_image(WORDS, PER_IMAGE),
    )


def behind_prefix(size: int, prefix: int) -> Tensor:
    """(size, size) bool: the prefix sees itself whole, what follows is causal.

    Two calls compute it: `CachedAttention.read_prefix`, then the step.
    """
    positions = torch.arange(size)
    return causal(positions[None], size, None)[0] | (positions < prefix).expand(size, size) & (
        positions[:, None] < prefix
    )


def last_image(words: list[str], per_image: int) -> Tensor:
    """(words, vectors of all images) bool: a word sees the last image at or before it.

    Alayrac et al. 2022, "Flamingo", §2.3 (arXiv 2204.14198).
    """
    number = torch.tensor([word == IMAGE for word in words]).cumsum(0)  # of its image, from 1
    mask = ImageMask.of(number[None, None], per_image, int(number[-1]) * per_image)
    return mask.bias[0, 0] == 0


def draw(data: Measurements) -> Canvas:
    """Six masks; blue is what is seen."""
    figure, axes = style.canvas(8.4, 5.6, 2, 3)
    panels = (
        (data.padding, f"padding: {LENGTH} of {SIZE} are tokens"),
        (data.causal, "causal"),
        (data.window, f"causal, window {WINDOW}"),
        (data.neighbours, f"two-sided window {WINDOW}"),
        (data.prefix, f"causal behind a prefix of {PREFIX}"),
        (data.images, f"last image, {PER_IMAGE} vectors each"),
    )
    for axis, (mask, title) in zip(axes.flat, panels, strict=True):
        style.matrix(axis, mask.float(), title, vmin=0, vmax=1.4)
        _grid(axis, *mask.shape)
    axes[1, 2].set_yticks(range(len(WORDS)), WORDS, family="DejaVu Sans")
    for axis in axes[:, 0]:
        axis.set_ylabel("query")
    for axis in axes[1]:
        axis.set_xlabel("key")
    return figure


def _grid(axis: Axes, rows: int, columns: int) -> None:
    """Thin lines between the cells, and no ticks."""
    axis.set_xticks([])
    axis.set_yticks([])
    for row in range(1, rows):
        axis.axhline(row - 0.5, color="lightgray", lw=0.5)
    for column in range(1, columns):
        axis.axvline(column - 0.5, color="lightgray", lw=0.5)


def facts(data: Measurements) -> Facts:
    """Shares of the pairs that are computed for nothing, of the masks drawn."""
    return {"pairs that the causal mask hides": percent(1 - float(data.causal.float().mean()))}


FIGURE = Figure(measure, draw, facts)
