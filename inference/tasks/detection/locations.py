"""Places in an image that a model writes as tokens: `<loc_N>` is bin N of a thousand a side.

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
