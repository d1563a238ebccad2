"""Sinusoidal positions: the table, and products of its rows by distance.

Vaswani et al. 2017, §3.5 (arXiv 1706.03762).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Canvas
from numpy.typing import NDArray

from benchmarks.figures import style
from benchmarks.figures.figure import Facts, Figure
from export.layers.attention.positions import interleaved_sinusoids

POSITIONS, WIDTH = 128, 128
FROM = (20, 64, 100)
"""Positions whose products with all others are drawn."""


@dataclass(frozen=True)
class Measurements:
    """The table (positions, width) and the products of its rows (positions, positions)."""

    table: NDArray[Any]
    products: NDArray[Any]


def measure() -> Measurements:
    """The paper's table of example-es-en's width."""
    table = interleaved_sinusoids(POSITIONS, WIDTH).double().numpy()
    return Measurements(table, table @ table.T)


def draw(data: Measurements) -> Canvas:
    """The table, and products by distance from three positions."""
    figure, ((first, second),) = style.canvas(8.4, 2.9, 1, 2)
    bar = style.matrix(first, data.table, "the table", cmap="RdBu", vmin=-1, vmax=1, aspect="auto")
    figure.colorbar(bar, ax=first, shrink=0.8)
    first.set_xlabel("dimension")
    first.set_ylabel("position")
    for position, line in zip(FROM, ("-", "--", ":"), strict=True):
        distance = np.arange(POSITIONS) - position
        second.plot(distance, data.products[position], line, label=f"from position {position}")
    second.set_title("products of rows by distance")
    second.set_xlabel("distance")
    second.legend(loc="lower center")
    return figure


def facts(data: Measurements) -> Facts:
    """Largest product, and how far products of equal distance differ."""
    return {
        "product of a row with itself": f"{data.products[0, 0]:.1f}",
        "mean product at distance 1": f"{np.diag(data.products, 1).mean():.1f}",
        "mean product at distance 10": f"{np.diag(data.products, 10).mean():.1f}",
        "mean product at distance 100": f"{np.diag(data.products, 100).mean():.1f}",
    }


FIGURE = Figure(measure, draw, facts)
