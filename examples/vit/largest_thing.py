"""The classification task of the scene world: colour and shape of a picture's largest thing.

Every class occurs in training. Held-out pictures show a class with a texture that training never
combines with it, so that a held-out score measures composition, not memorisation.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from PIL import Image

from examples.scenes.rendering import Placement, placements, render
from examples.scenes.scene import COLOURS, SHAPES, Scene, Split, scenes

CLASSES = tuple(f"{colour} {shape}" for colour in COLOURS for shape in SHAPES)
_FIRST_HELDOUT = 2_000_000_000  # render seeds above those of any training
_SEEDS = 10_000_000  # render seeds of one run


def class_of(scene: Scene) -> str:
    """The class of a scene with one largest thing; a canonical scene begins with it."""
    thing = scene.canonical().first
    return f"{thing.colour} {thing.shape}"


def is_decided(scene: Scene) -> bool:
    """Whether one thing is larger than any other of the scene."""
    return scene.second is None or scene.first.size != scene.second.size


def pictures(split: Split, seed: int) -> Iterator[tuple[Scene, Image.Image]]:
    """Endless scenes with one largest thing, and their pictures; deterministic in the arguments."""
    for scene, render_seed in _seeded(split, seed):
        yield scene, render(scene, render_seed)


@dataclass(frozen=True)
class Drawn:
    """A scene, its picture, and where each of its things is."""

    scene: Scene
    image: Image.Image
    places: list[Placement]


def heldout_pictures(count: int, seed: int) -> Iterator[Drawn]:
    """Pictures of withheld combinations, the same ones for the same arguments."""
    for scene, render_seed in islice(_seeded("heldout", seed), count):
        yield Drawn(scene, render(scene, render_seed), placements(scene, render_seed))


def _seeded(split: Split, seed: int) -> Iterator[tuple[Scene, int]]:
    """Scenes with their render seeds; of the held-out split, those whose largest thing is new."""
    first = seed * _SEEDS + (_FIRST_HELDOUT if split == "heldout" else 0)
    for index, scene in enumerate(scenes(split, sys.maxsize, seed)):
        if is_decided(scene) and (split == "train" or scene.first.is_withheld):
            yield scene, first + index
