"""Regions of an image as boxes of a response.

Xiao et al. 2023, "Florence-2", §3.1 (arXiv 2311.06242). Behind a phrase are the places of its
boxes, each of four: left, top, right, bottom.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from inference.tasks.generation.image_places import WithImages
from inference.tasks.shared.model_calls import Array
from inference.tasks.shared.rows import Row
from triptych.tasks.detect import Box


class DetectSection(WithImages):
    """What a model needs beyond regions that the vectors of labels score.

    A generator that writes boxes has `images` (`written.py`), a detector that reads the text of all
    labels with the image has `strides` (`grounded.py`).
    """

    prompt: str = ""
    """Of a generator: for all things that it finds."""
    labelled: str = ""
    """Of a generator: for things by their labels, which follow."""
    ignored: tuple[str, ...] = ()
    """Phrases of an answer to labels that stand for nothing in the image."""
    delimiters: tuple[int, ...] = ()
    """Tokens that end a label in a text of several; for verification."""
    strides: tuple[tuple[int, int], ...] = ()
    """Height and width in pixels of the places of each grid, which regions are chosen from."""


BINS = 1000
LOCATION = re.compile(r"<loc_(\d+)>")
"""The text of a place's token."""
_SIDES = 4
_PHRASE = re.compile(r"(?:<[^<>]*>)?([^<]+)$")


class Place(NamedTuple):
    """A bin, and the log-probability of its token."""

    bin: int
    log_prob: float


class Phrase(NamedTuple):
    """A text, and the places that follow it."""

    text: str
    places: tuple[Place, ...]


@dataclass(frozen=True)
class WrittenBox:
    """A box with its label.

    Attributes:
        score: Geometric mean of the probabilities of its four places.
        corners: (x_min, y_min, x_max, y_max) in pixels.
    """

    label: str
    score: float
    corners: tuple[float, ...]


def written_boxes(
    phrases: Sequence[Phrase], size: tuple[int, int], ignored: Collection[str] = ()
) -> list[WrittenBox]:
    """The boxes of an answer in its order, as `Florence2Processor.post_process_generation`.

    Labels keep characters beyond ASCII, which that drops. Text of a token is no label, of which
    that takes `loc_3>` where places have no phrase or are fewer than four. Places that make up no
    box are left out, and so are those behind several lines.

    Args:
        size: (width, height) of the image.
        ignored: Labels that stand for nothing in the image.
    """
    found = []
    for text, places in phrases:
        phrase = _PHRASE.search(text)
        if phrase is None or "\n" in phrase[1].lstrip() or phrase[1].strip() in ignored:
            continue
        for start in range(0, len(places) - _SIDES + 1, _SIDES):
            four = places[start : start + _SIDES]
            score = float(np.exp(np.mean([place.log_prob for place in four])))
            bins = np.array([place.bin for place in four], dtype=np.float64).reshape(2, 2)
            corners = tuple(pixels(bins, size).flatten().tolist())
            found.append(WrittenBox(phrase[1].strip(), score, corners))
    return found


def pixels(bins: npt.NDArray[np.float64], size: tuple[int, int]) -> npt.NDArray[np.float64]:
    """Bins (..., 2) of x and y as whole pixels: of each bin its centre, in float32.

    Args:
        size: (width, height) of the image.
    """
    width = (np.array(size, dtype=np.float64) / BINS).astype(np.float32)
    places: npt.NDArray[np.float32] = (bins + 0.5).astype(np.float32) * width
    return np.trunc(places).astype(np.float64)


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
