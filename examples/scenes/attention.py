"""Whether a captioner attends to the things that it names; the renderer supplies their positions.

Counts the colours and shapes of things that a caption names correctly, in held-out pictures.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from examples.scenes.patch_labels import covered
from examples.scenes.rendering import SIDE, placements
from examples.scenes.scene import SHAPES, Scene, Thing
from examples.scenes.scores import heldout_pictures, picture_seed


@dataclass(frozen=True, eq=False)
class TokenMap:
    """A token of a caption, and its attention map: (rows, columns) of a square grid."""

    word: str
    map: NDArray[Any]


ObserveFunction = Callable[[list[Image.Image]], list[list[TokenMap]]]


def attention_scores(observe: ObserveFunction, count: int, seed: int) -> dict[str, float]:
    """Shares over all counted words.

    A cell belongs to the thing that covers its centre. Uniform attention is the baseline; the
    control is the attention on the other thing of the picture.
    """
    pairs = list(heldout_pictures(count, seed))
    captions = observe([picture for _, picture in pairs])
    rows = [
        _looked_at(token, regions, index)
        for number, ((scene, _), tokens) in enumerate(zip(pairs, captions, strict=True))
        for regions in [_regions(scene, picture_seed(count, seed, number), tokens)]
        for index, token in _named(scene.things, tokens)
    ]
    best, mass, blind = np.mean([row[:3] for row in rows], axis=0).tolist()
    other = float(np.mean([row[3] for row in rows if row[3] is not None]))
    return {
        "colours and shapes whose highest attention is on the thing": best,
        "their attention on the thing": mass,
        "uniform attention on it": blind,
        "their attention on the other thing": other,
    }


def _regions(scene: Scene, seed: int, tokens: Sequence[TokenMap]) -> list[NDArray[Any]]:
    """The cells of each thing, (rows, columns) bool."""
    patch = SIDE // len(tokens[0].map)
    return [covered(place, patch) for place in placements(scene, seed)]


def _named(things: Sequence[Thing], tokens: Sequence[TokenMap]) -> Iterator[tuple[int, TokenMap]]:
    """Correct colours and shapes, with the index of the thing that they describe.

    A thing's shape is its last word; behind the last thing comes the background.
    """
    index = 0
    for token in tokens:
        if index == len(things):
            return
        word = token.word.strip()
        if word in (things[index].colour, things[index].shape):
            yield index, token
        index += word in SHAPES


def _looked_at(
    token: TokenMap, regions: Sequence[NDArray[Any]], index: int
) -> tuple[bool, float, float, float | None]:
    """Whether the best cell is on the thing; mass on it; its area share; mass on the other."""
    region = regions[index]
    total = max(float(token.map.sum()), 1e-9)
    other = float(token.map[regions[1 - index]].sum()) / total if len(regions) > 1 else None
    best = bool(region.flat[token.map.argmax()])
    return best, float(token.map[region].sum()) / total, float(region.mean()), other
