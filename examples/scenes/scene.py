"""The scene world: attributes of pictures, possible scenes, and those withheld from training.

A scene is one thing, or two things with a relation, before a background. Some combinations of
attributes are withheld: they never occur in the training split, and every held-out scene has at
least one, so that a held-out score measures composition, not memorisation.

Implicit formulas need no drawing library: evaluating one on a fine grid and averaging gives an
anti-aliased picture, and a test can check whether a point lies inside.

Every function takes two float arrays of one shape: x to the right and y upwards, in units of the
object's radius. It returns a bool array of that shape: inside the outline, or on the second tone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from hashlib import blake2b
from math import cos, pi, sin
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Region = Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]

_STAR_POINTS = 5
_STAR_INNER_RADIUS = 0.45
_SQRT3 = 3**0.5


def circle(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """A disc."""
    return x**2 + y**2 <= 0.9**2


def square(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """A square, upright."""
    return np.maximum(np.abs(x), np.abs(y)) <= 0.8


def triangle(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """An equilateral triangle, tip up."""
    return (y >= -0.75) & (y <= 0.95 - _SQRT3 * np.abs(x))


def diamond(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """A square on its tip, pressed from the sides."""
    return np.abs(x) / 0.7 + np.abs(y) <= 1.0


def cross(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """A cross of two equal bars."""
    near, far = np.minimum(np.abs(x), np.abs(y)), np.maximum(np.abs(x), np.abs(y))
    return (near <= 0.33) & (far <= 0.95)


def ring(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """A disc with a round hole."""
    distance = x**2 + y**2
    return (distance >= 0.45**2) & (distance <= 0.95**2)


def crescent(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """A moon, open to the right."""
    return (x**2 + y**2 <= 0.95**2) & ((x - 0.5) ** 2 + y**2 >= 0.75**2)


def heart(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """The sextic heart curve (x² + y² - 1)³ = x²y³, scaled into the unit square."""
    u, v = 1.2 * x, 1.2 * y + 0.1
    disc = u * u + v * v - 1
    return disc * disc * disc <= u * u * v * v * v  # numpy's cubes by ** are a hundred times slower


def star(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """A five-pointed star: one straight edge, folded ten times around the centre."""
    sector = pi / _STAR_POINTS
    radius = np.hypot(x, y)
    angle = np.abs((np.arctan2(x, y) + sector) % (2 * sector) - sector)  # 0 at a tip
    tip = 1.0
    inner_x, inner_y = _STAR_INNER_RADIUS * cos(sector), _STAR_INNER_RADIUS * sin(sector)
    u, v = radius * np.cos(angle), radius * np.sin(angle)
    return (tip - u) * inner_y >= v * (tip - inner_x)


def plain(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """One tone all over."""
    return np.zeros(np.broadcast(x, y).shape, dtype=bool)


def striped(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """Stripes along y, both tones equally wide."""
    return _is_even(x / 0.3)


def checked(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """A chess board."""
    return _is_even(x / 0.45) == _is_even(y / 0.45)


def dotted(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """Round dots of the second tone on a square grid."""
    spacing = 0.64
    u, v = (x + spacing / 2) % spacing - spacing / 2, (y + spacing / 2) % spacing - spacing / 2
    return u**2 + v**2 <= 0.2**2


def _is_even(x: NDArray[Any]) -> NDArray[Any]:
    return np.floor(x).astype(np.int32) & 1 == 0


OUTLINES: dict[str, Region] = {
    region.__name__: region
    for region in (circle, square, triangle, star, cross, ring, heart, diamond, crescent)
}
TEXTURES: dict[str, Region] = {
    region.__name__: region for region in (plain, striped, dotted, checked)
}


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

    def seen_from_second(self) -> Scene:
        """The same picture, described from its second thing."""
        if self.second is None or self.relation is None:
            return self
        return replace(self, first=self.second, relation=OPPOSITE[self.relation], second=self.first)

    def canonical(self) -> Scene:
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


RELATION_WORDS = {
    "left": "to the left of",
    "right": "to the right of",
    "above": "above",
    "below": "below",
}


@dataclass(frozen=True)
class Detail:
    """Which words a label includes. Shape and texture are always included: no word means plain."""

    has_sizes: bool = True
    has_colours: bool = True
    has_background: bool = True


FULL = Detail()


def caption(scene: Scene) -> str:
    """The canonical caption of the scene, the same from whichever thing it is described.

    Such as "a large red circle above a small blue striped ring on a gray background".
    """
    return f"a {label(scene.canonical())}"


def label(scene: Scene, detail: Detail = FULL) -> str:
    """The scene as described, without its first article: it goes into "a photo of a {}"."""
    words = _thing_words(scene.first, detail)
    if scene.second is not None and scene.relation is not None:
        second = _thing_words(scene.second, detail)
        words += f" {RELATION_WORDS[scene.relation]} {article(second)} {second}"
    return words + (f" on a {scene.background} background" if detail.has_background else "")


def _thing_words(thing: Thing, detail: Detail) -> str:
    words = [
        thing.size if detail.has_sizes else "",
        thing.colour if detail.has_colours else "",
        "" if thing.texture == "plain" else thing.texture,
        thing.shape,
    ]
    return " ".join(word for word in words if word)


def article(words: str) -> str:
    """The indefinite article of these words."""
    return "an" if words[0] in "aeiou" else "a"
