"""T5's buckets of distances (Raffel et al. 2020, §2.1, arXiv 1910.10683)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure as Canvas
from numpy.typing import NDArray

from benchmarks.figures import style
from benchmarks.figures.figure import Facts, Figure
from export.layers.attention.positions import RelativePositions

BUCKETS, FARTHEST = 32, 128  # the published checkpoints'
REACH = 160


@dataclass(frozen=True)
class Measurements:
    """Buckets by the key's position minus the query's."""

    distances: NDArray[Any]
    encoder: NDArray[Any]
    decoder: NDArray[Any]


def measure() -> Measurements:
    """Buckets of an encoder's and a decoder's layers."""
    distances = torch.arange(-REACH, REACH + 1)
    found = [
        RelativePositions(1, BUCKETS, FARTHEST, is_bidirectional=both).bucket(distances).numpy()
        for both in (True, False)
    ]
    return Measurements(distances.numpy(), *found)


def draw(data: Measurements) -> Canvas:
    """Two staircases, and a matrix of an encoder's buckets."""
    figure, ((first, second),) = style.canvas(8.4, 2.9, 1, 2, width_ratios=(2, 1))
    first.step(data.distances, data.encoder, where="mid", label="encoder: both directions")
    behind = data.distances <= 0
    first.step(
        data.distances[behind], data.decoder[behind], "--", where="mid", label="decoder: behind"
    )
    first.set_xlabel("position of the key minus the query's")
    first.set_ylabel("bucket")
    first.legend()
    positions = np.arange(48)
    matrix = data.encoder[positions[None] - positions[:, None] + REACH]
    bar = style.matrix(second, matrix, "bucket of each pair", cmap="tab20b")
    figure.colorbar(bar, ax=second, shrink=0.8)
    second.set_xlabel("key")
    second.set_ylabel("query")
    return figure


def facts(data: Measurements) -> Facts:
    """Where buckets stop holding one distance each, and where the last begins."""
    return {
        "distances with a bucket of their own, decoder": str(own(data.distances, data.decoder)),
        "distances with a bucket of their own, encoder": str(own(data.distances, data.encoder)),
        "the last bucket's first distance, decoder": str(last(data.distances, data.decoder)),
        "the last bucket's first distance, encoder": str(last(data.distances, data.encoder)),
    }


def own(distances: NDArray[Any], buckets: NDArray[Any]) -> int:
    """Distances to keys behind, 0 included, that share their bucket with no other distance."""
    behind = buckets[distances <= 0]
    return int((np.bincount(behind) == 1).sum())


def last(distances: NDArray[Any], buckets: NDArray[Any]) -> int:
    """The smallest distance to a key behind from which on all share one bucket."""
    behind = buckets[distances <= 0]
    return int(-distances[distances <= 0][behind == behind[0]].max())


FIGURE = Figure(measure, draw, facts)
