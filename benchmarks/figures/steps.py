"""One head, step by step: products, scaled, masked, weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Canvas
from numpy.typing import NDArray

from benchmarks.figures import style
from benchmarks.figures.example_gpt import Read, read_prompt
from benchmarks.figures.figure import Facts, Figure

LAYER, HEAD = 1, 0
LAST = 21  # tokens shown: the last of the prompt


@dataclass(frozen=True)
class Measurements:
    """Of one head, (T, T) each."""

    tokens: list[str]
    scores: NDArray[Any]
    """Scaled."""
    weights: NDArray[Any]
    scale: float


def measure() -> Measurements:
    """The chosen head's matrices for the prompt."""
    read: Read = read_prompt()
    return Measurements(
        read.tokens, read.scores[LAYER][HEAD], read.weights[LAYER][HEAD], read.scale
    )


def draw(data: Measurements) -> Canvas:
    """The last rows and columns of each matrix."""
    tokens = [shown(token) for token in data.tokens[-LAST:]]
    scores = data.scores[-LAST:, -LAST:]
    hidden = np.triu(np.ones_like(scores, dtype=bool), 1)
    limit = float(np.abs(scores).max())
    figure, ((first, second, third),) = style.canvas(9, 3, 1, 3)
    signed = {"cmap": "RdBu", "vmin": -limit, "vmax": limit}
    bar = style.matrix(first, scores, "q · k / √K", **signed)
    figure.colorbar(bar, ax=first, shrink=0.7)
    masked = np.ma.array(scores, mask=hidden)
    style.matrix(second, masked, "the same, masked", **signed)
    second.set_facecolor("lightgray")
    bar = style.matrix(third, data.weights[-LAST:, -LAST:], "softmax of each row", vmin=0, vmax=1)
    figure.colorbar(bar, ax=third, shrink=0.7)
    for axis in (first, second, third):
        style.label(axis, tokens, tokens)
        axis.tick_params(labelsize=5.5)
    return figure


def shown(token: str) -> str:
    """A token as a label: line ends and spaces visible."""
    return token.replace("\n", "↵").replace(" ", "·")


def facts(data: Measurements) -> Facts:
    """The scale, and how far the scores reach."""
    seen = data.scores[np.tril(np.ones_like(data.scores, dtype=bool))]
    return {
        "scale of example-gpt": f"{data.scale:.3f}",
        "smallest visible score": f"{seen.min():.1f}",
        "largest visible score": f"{seen.max():.1f}",
    }


FIGURE = Figure(measure, draw, facts)
