"""Images of many things with labels for every patch, for pre-training an encoder.

A caption is a weak label: a small ViT needs very many to separate similar shapes. Labels of every
patch teach the same words from several times fewer images.
They keep to the training split: no withheld thing, and no withheld pair of things. Where circles
are withheld in one colour, an encoder learns to guess the shape from the colour; images without
colour prevent that.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from examples.scenes.rendering import RADIUS, SIDE, Placement, draw
from examples.scenes.scene import (
    BACKGROUNDS,
    COLOURS,
    SHAPES,
    SIZES,
    TEXTURE_NAMES,
    Thing,
    draw_thing,
    is_withheld_pair,
    pick,
)

VOCABULARIES = (SIZES, COLOURS, TEXTURE_NAMES, SHAPES)  # in the order of Thing's fields
NAMELESS = -100  # the class of a patch that no thing covers; cross entropy skips it


def labelled_images(
    seed: int, patch: int, gray_share: float = 0.0
) -> Iterator[tuple[Image.Image, NDArray[Any]]]:
    """Yields endless pictures with the classes of their patches.

    Classes are (SIDE / patch squared, 4) int64: for each patch, row by row, the indices into
    `VOCABULARIES`, or `NAMELESS`. A `gray_share` of the pictures has no colour, nor names for it.
    """
    rng = np.random.default_rng([seed, 2])
    while True:
        background = pick(rng, BACKGROUNDS)
        columns = int(rng.integers(2, 4))
        things = compatible_things(rng, columns**2, background, only_small=columns > 2)
        places = _grid_places(rng, things, columns)
        picture = draw(things, places, background, rng)
        classes = _patch_classes(things, places, patch)
        if gray_share and rng.random() < gray_share:
            picture = picture.convert("L").convert("RGB")
            classes[:, VOCABULARIES.index(COLOURS)] = NAMELESS
        yield picture, classes


def compatible_things(
    rng: np.random.Generator, count: int, background: str, only_small: bool
) -> list[Thing]:
    """Things that may share a training picture, none in the background's colour."""
    things: list[Thing] = []
    while len(things) < count:
        thing = draw_thing(rng)
        if only_small:
            thing = replace(thing, size="small")
        is_permitted = not any(is_withheld_pair(thing, other) for other in things)
        if is_permitted and not thing.is_withheld and thing.colour != background:
            things.append(thing)
    return things


def _grid_places(rng: np.random.Generator, things: list[Thing], columns: int) -> list[Placement]:
    """One cell of a square grid for each thing, off its middle as far as the cell allows."""
    cell = SIDE / columns
    places = []
    for index, thing in enumerate(things):
        radius = rng.uniform(*RADIUS[thing.size])
        shift_x, shift_y = rng.uniform(-1, 1, 2) * max(cell / 2 - radius, 1)
        row, column = divmod(index, columns)
        x, y = (column + 0.5) * cell + shift_x, (row + 0.5) * cell + shift_y
        places.append(Placement(x, y, radius))
    return places


def covered(place: Placement, patch: int) -> NDArray[Any]:
    """Patches whose centre a thing at this place covers: (SIDE / patch, SIDE / patch) bool."""
    centres = np.arange(patch / 2, SIDE, patch)
    distance = np.hypot(centres[None, :] - place.x, centres[:, None] - place.y)
    return distance <= place.radius + 1


def _patch_classes(things: list[Thing], places: list[Placement], patch: int) -> NDArray[Any]:
    side = SIDE // patch
    classes = np.full((side, side, len(VOCABULARIES)), NAMELESS)
    for thing, place in zip(things, places, strict=True):
        words = (thing.size, thing.colour, thing.texture, thing.shape)
        classes[covered(place, patch)] = [
            names.index(word) for names, word in zip(VOCABULARIES, words, strict=True)
        ]
    return classes.reshape(-1, len(VOCABULARIES))
