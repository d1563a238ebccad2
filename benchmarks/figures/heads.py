"""Heads of one model attend to different things, and their mean hides it.

Olsson et al. 2022, "In-context Learning and Induction Heads" (arXiv 2209.11895): one head copies
the preceding token to each position, a head of a later layer finds the position whose copy is the
present token. The first two layers of example-gpt were initialised to do so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Canvas
from numpy.typing import NDArray

from benchmarks.figures import style
from benchmarks.figures.example_gpt import read_prompt
from benchmarks.figures.figure import Facts, Figure
from benchmarks.figures.steps import shown

PREVIOUS, INDUCTION, LATE = (0, 0), (1, 0), (3, 2)
"""(layer, head) of the panels, counted from 0."""


@dataclass(frozen=True)
class Measurements:
    """Weights after mask and softmax.

    Attributes:
        tokens: T pieces of text.
        weights: (layers, H, T, T).
    """

    tokens: list[str]
    weights: NDArray[Any]

    @property
    def answer(self) -> int:
        """Position of the answer's first token: behind the arrow of the same word's example."""
        word = len(self.tokens) - 3
        earlier = [i for i in range(word) if self.tokens[i] == self.tokens[word]]
        return earlier[0] + 3


def measure() -> Measurements:
    """All heads' weights for the prompt."""
    read = read_prompt()
    return Measurements(read.tokens, np.stack(read.weights))


def draw(data: Measurements) -> Canvas:
    """Three heads and a mean."""
    panels = {
        f"layer {layer + 1}, head {head + 1}": data.weights[layer, head]
        for layer, head in (PREVIOUS, INDUCTION, LATE)
    }
    panels["layer 2, mean over heads"] = data.weights[INDUCTION[0]].mean(axis=0)
    figure, axes = style.canvas(8.4, 8.4, 2, 2)
    tokens = [shown(token) for token in data.tokens]
    for axis, (title, weights) in zip(axes.flat, panels.items(), strict=True):
        bar = style.matrix(axis, weights, title, vmin=0, vmax=1)
        style.label(axis, tokens, tokens)
        axis.tick_params(labelsize=6)
    figure.colorbar(bar, ax=axes, shrink=0.4)
    return figure


def facts(data: Measurements) -> Facts:
    """How sharply the two heads of the lookup attend, and what is left of it in the mean."""
    previous = data.weights[PREVIOUS]
    induction = data.weights[INDUCTION]
    mean = data.weights[INDUCTION[0]].mean(axis=0)
    return {
        "mean weight on the preceding token": f"{np.diag(previous, -1).mean():.2f}",
        "weight of the last position on the answer": f"{induction[-1, data.answer]:.2f}",
        "the same, mean over the layer's heads": f"{mean[-1, data.answer]:.2f}",
    }


FIGURE = Figure(measure, draw, facts)
