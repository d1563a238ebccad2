"""Regions of an image that a graph returns, as boxes of a response."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inference.tasks.shared.model_calls import Array
from inference.tasks.shared.rows import Row
from triptych.tasks.detect import Box

SIDES = ("x_min", "y_min", "x_max", "y_max")
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SizedRow:
    """Where an image's regions are, and its own size in pixels."""

    row: Row
    width: int
    height: int

    def corners(self, boxes: Array, is_padded: bool) -> Floats:
        """Boxes as corners in pixels, cut at the image's edges.

        Args:
            boxes: (N, 4): centre (x, y), width and height, in parts of the graph's image.
            is_padded: The graph's image is a square whose upper left is this image.
        """
        size = np.array([self.width, self.height], np.float64)
        centre, half = boxes[:, :2].astype(np.float64), boxes[:, 2:] / 2
        corners = np.stack([centre - half, centre + half], axis=1)  # (N, 2, 2)
        corners *= size.max() if is_padded else size
        return np.asarray(corners.clip(0, size).reshape(-1, 4))


def best_first(scores: Floats, threshold: float, top_k: int | None) -> list[int]:
    """Numbers of the regions whose scores (N,) reach the threshold."""
    order = np.argsort(-scores, kind="stable")
    return [int(region) for region in order[scores[order] >= threshold][:top_k]]


def box(
    label: str, score: float, corners: Sequence[float] | Floats, objectness: float | None = None
) -> Box:
    """A box of a response.

    Args:
        corners: x and y of the upper left corner, then of the lower right one.
    """
    sides = dict(zip(SIDES, map(float, corners), strict=True))
    return Box(label=label, score=score, objectness=objectness, **sides)


def sigmoid(logits: Array) -> Floats:
    """Logits as probabilities."""
    return np.asarray(np.exp(-np.logaddexp(0.0, -logits.astype(np.float64))))
