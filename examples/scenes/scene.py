"""The scene world: attributes of pictures, possible scenes, and those withheld from training.

A scene is one thing, or two things with a relation, before a background. Some combinations of
attributes are withheld: they never occur in the training split, and every held-out scene has at
least one, so that a held-out score measures composition, not memorisation.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from hashlib import blake2b
from typing import Literal

import numpy as np

from examples.scenes.shapes import OUTLINES, TEXTURES

Split = Literal["train", "heldout"]

SHAPES = tuple(OUTLINES)
TEXTURE_NAMES = tuple(TEXTURES)
SIZES = ("small", "large")
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "white", "black")
BACKGROUNDS = ("gray", "white", "black", "green", "blue", "cyan")
RELATIONS = ("left", "right", "above", "below")
OPPOSITE = {"left": "right", "right": "left", "above": "below", "below": "above"}

WITHHELD_PERCENT = 16
_SPLITS: tuple[Split, ...] = ("train", "heldout")
_ONE_THING_SHARE = 0.3


@dataclass(frozen=True)
class Thing:
    """One object of a scene."""

    size: str
    colour: str
    texture: str
    shape: str

    @property
    def is_withheld(self) -> bool:
        """Whether no training scene combines this colour, texture and shape."""
        return _is_withheld("thing", self.colour, self.texture, self.shape)


@dataclass(frozen=True)
class Scene:
    """One thing before a background, or a first thing that is `relation` of a second one."""

    first: Thing
    background: str
    relation: str | None = None
    second: Thing | None = None

    @property
    def things(self) -> tuple[Thing, ...]:
        """The one or two things, the described one first."""
        return (self.first,) if self.second is None else (self.first, self.second)

    @property
    def is_withheld(self) -> bool:
        """Whether the scene has a withheld thing or pair of things."""
        if self.second is None:
            return self.first.is_withheld
        is_withheld = self.first.is_withheld or self.second.is_withheld
        return is_withheld or is_withheld_pair(self.first, self.second)

    @property
    def is_possible(self) -> bool:
        """Whether every thing stands out from the background and from the other thing."""
        is_visible = all(thing.colour != self.background for thing in self.things)
        return is_visible and self.first != self.second

    def seen_from_second(self) -> "Scene":
        """The same picture, described from its second thing."""
        if self.second is None or self.relation is None:
            return self
        return replace(self, first=self.second, relation=OPPOSITE[self.relation], second=self.first)

    def canonical(self) -> "Scene":
        """The description that captions use: the larger thing first, else the left or upper one."""
        if self.second is None:
            return self
        if self.first.size == self.second.size:
            starts_second = self.relation in ("right", "below")
        else:
            starts_second = self.first.size == "small"
        return self.seen_from_second() if starts_second else self


def scenes(split: Split, count: int, seed: int) -> Iterator[Scene]:
    """Yields `count` random canonical scenes of a split, the same ones for the same arguments."""
    rng = np.random.default_rng([seed, _SPLITS.index(split)])
    while count > 0:
        scene = draw_scene(rng)
        if scene.is_possible and scene.is_withheld == (split == "heldout"):
            yield scene.canonical()
            count -= 1


def draw_scene(rng: np.random.Generator) -> Scene:
    """A scene of any split, possible or not."""
    background = pick(rng, BACKGROUNDS)
    first = draw_thing(rng)
    if rng.random() < _ONE_THING_SHARE:
        return Scene(first, background)
    return Scene(first, background, pick(rng, RELATIONS), draw_thing(rng))


def draw_thing(rng: np.random.Generator) -> Thing:
    """A thing of any split."""
    return Thing(*(pick(rng, names) for names in (SIZES, COLOURS, TEXTURE_NAMES, SHAPES)))


def pick(rng: np.random.Generator, names: tuple[str, ...]) -> str:
    """One of the names, all equally likely."""
    return names[int(rng.integers(len(names)))]


def is_withheld_pair(first: Thing, second: Thing) -> bool:
    """Whether things of these colours and shapes occur together in no training picture."""
    kinds = sorted(f"{thing.colour} {thing.shape}" for thing in (first, second))
    return _is_withheld("pair", *kinds)


def neighbours(scene: Scene) -> list[Scene]:
    """Every possible scene that differs from `scene` in exactly one attribute, as a description.

    The first thing stays the first thing, so that the descriptions are comparable.
    """
    found = [replace(scene, background=other) for other in BACKGROUNDS]
    found += [replace(scene, first=thing) for thing in _altered(scene.first)]
    if scene.second is not None:
        found += [replace(scene, second=thing) for thing in _altered(scene.second)]
        found += [replace(scene, relation=other) for other in RELATIONS]
    return [other for other in found if other != scene and other.is_possible]


def _altered(thing: Thing) -> list[Thing]:
    return (
        [replace(thing, size=other) for other in SIZES if other != thing.size]
        + [replace(thing, colour=other) for other in COLOURS if other != thing.colour]
        + [replace(thing, texture=other) for other in TEXTURE_NAMES if other != thing.texture]
        + [replace(thing, shape=other) for other in SHAPES if other != thing.shape]
    )


@cache
def _is_withheld(*words: str) -> bool:
    """Whether a keyed hash withholds these attributes: the same in every process, unlike `hash`."""
    digest = blake2b(" ".join(words).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") % 100 < WITHHELD_PERCENT
