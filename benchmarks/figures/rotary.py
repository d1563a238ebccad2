"""Rotary positions: the product of a rotated query and key depends on their distance alone.

Su et al. 2021, "RoFormer", §3.2 and §3.3 (arXiv 2104.09864).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure as Canvas
from numpy.typing import NDArray

from benchmarks.figures import style
from benchmarks.figures.figure import Facts, Figure
from export.catalog.entries import read_catalog
from export.config.config_reader import ConfigReader
from export.layers.attention.rotary import Rotary, read_rotary

WIDTH, POSITIONS = 64, 512
STARTS = (0, 100, 250)
"""Positions of the query in the left panel."""
REACH = 200
SCALED = "meta-llama/Llama-3.2-1B"
"""Of the catalog: base 500,000, llama3 scaling, heads of 64."""


@dataclass(frozen=True)
class Measurements:
    """Products and wavelengths.

    Attributes:
        random: (starts, distances): of one random query and one random key.
        same: (distances,): of a vector of ones with itself, over its product at distance 0.
        wavelengths: Positions of a full turn of each pair of dimensions, (K / 2,) by name.
    """

    random: NDArray[Any]
    same: NDArray[Any]
    wavelengths: dict[str, NDArray[Any]]


def measure() -> Measurements:
    """Products of heads of 64 dimensions."""
    rotary = Rotary(WIDTH, POSITIONS)
    random = torch.Generator().manual_seed(0)
    query, key = (torch.randn(WIDTH, generator=random) for _ in range(2))
    ones = torch.ones(WIDTH)
    return Measurements(
        np.stack([products(rotary, query, key, start) for start in STARTS]),
        products(rotary, ones, ones, 0) / WIDTH,
        {
            "base 10,000": wavelengths(rotary),
            "base 500,000": wavelengths(Rotary(WIDTH, 2, base=500_000.0)),
            "base 500,000, llama3 scaling": wavelengths(published()),
        },
    )


def products(rotary: Rotary, query: torch.Tensor, key: torch.Tensor, start: int) -> NDArray[Any]:
    """Query at `start`, key at each of the `REACH` positions from there on: (REACH,)."""
    places = torch.arange(start, start + REACH)[None]
    keys = rotary.rotate(key.expand(1, 1, REACH, WIDTH), places)
    turned = rotary.rotate(query.expand(1, 1, 1, WIDTH), places[:, :1])
    return (turned.double() @ keys.double().transpose(-1, -2))[0, 0, 0].numpy()


def published() -> Rotary:
    """The rotation of a published checkpoint, by the reader of its configuration."""
    config = next(one.config for one in read_catalog() if one.name == SCALED)
    return read_rotary(ConfigReader(config), WIDTH, 2)


def wavelengths(rotary: Rotary) -> NDArray[Any]:
    """Positions that a pair of dimensions takes for a full turn."""
    cosine, sine = rotary.tables
    return 2 * np.pi / np.arctan2(sine[1].double(), cosine[1].double()).numpy()


def draw(data: Measurements) -> Canvas:
    """Products by distance, of random vectors and of equal ones; wavelengths."""
    figure, ((first, second, third),) = style.canvas(8.4, 2.8, 1, 3)
    for start, row, line in zip(STARTS, data.random, ("-", "--", ":"), strict=True):
        first.plot(row, line, label=f"query at {start}")
    first.set_title("random q and k")
    second.plot(data.same)
    second.axhline(0, color="gray", lw=0.8, ls=":")
    second.set_title("q = k = ones, relative to distance 0")
    for (name, values), line in zip(data.wavelengths.items(), ("-", "--", ":"), strict=True):
        third.semilogy(values, line, label=name)
    third.set_title("positions of a full turn")
    third.set_xlabel("pair of dimensions")
    for axis in (first, second):
        axis.set_xlabel("distance")
    first.legend()
    third.set_ylim(top=1e10)
    third.legend()
    return figure


def facts(data: Measurements) -> Facts:
    """How equal equal distances are, and how far the longest waves reach."""
    longest = {name: values[-1] for name, values in data.wavelengths.items()}
    difference = np.ptp(data.random, axis=0).max()
    return {
        "largest difference of products of one distance": f"{difference:.5f}",
        "ones at distance 10, relative": f"{data.same[10]:.2f}",
        "ones at distance 100, relative": f"{data.same[100]:.2f}",
        "longest full turn, base 10,000": f"{longest['base 10,000']:,.0f}",
        "longest full turn, base 500,000": f"{longest['base 500,000']:,.0f}",
        "longest full turn, with llama3 scaling": (
            f"{longest['base 500,000, llama3 scaling']:,.0f}"
        ),
    }


FIGURE = Figure(measure, draw, facts)
