"""Batches for contrastive training: families of scenes that differ in one attribute, and labels.

Within a family every label is a hard negative for every other picture, in both directions.
Labels omit some words, so one label can be true of several pictures; `matches` computes which.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.scenes.captions import Detail, label
from examples.scenes.scene import (
    BACKGROUNDS,
    COLOURS,
    RELATIONS,
    SHAPES,
    SIZES,
    TEXTURE_NAMES,
    Scene,
    Thing,
    neighbours,
    scenes,
)

UNSAID = -100  # cross entropy skips it
_THING_CLASSES = [len(names) for names in (SIZES, COLOURS, TEXTURE_NAMES, SHAPES)]
SLOT_CLASSES = [*_THING_CLASSES, 1 + len(RELATIONS), *_THING_CLASSES, len(BACKGROUNDS)]
_FULL_DETAIL_SHARE = 0.6


@dataclass(frozen=True)
class Description:
    """A scene described from its first thing, and the words that the label includes."""

    scene: Scene
    detail: Detail

    @property
    def text(self) -> str:
        """The label."""
        return label(self.scene, self.detail)


def families(count: int, members: int, seed: int, moved: int = 0) -> Iterator[list[Description]]:
    """Yields `count` families: a training scene and neighbours that training may show too.

    Of two things, at least `moved` members differ from the first in nothing but the relation:
    embeddings learn relations last, and few of a scene's neighbours differ in the relation.
    """
    rng = np.random.default_rng([seed, 3])
    for scene in scenes("train", count, seed):
        others = [other for other in neighbours(scene) if not other.is_withheld]
        family = [scene]
        if scene.second is not None and moved:
            family += _sample(rng, [one for one in others if one.relation != scene.relation], moved)
        rest = [other for other in others if other not in family]
        family += _sample(rng, rest, members - len(family))
        detail = _draw_detail(rng)
        yield [
            Description(member.seen_from_second() if rng.random() < 0.5 else member, detail)
            for member in family
        ]


def matches(descriptions: list[Description]) -> NDArray[Any]:
    """Whether each label is true of each scene: (scenes, labels) bool, the diagonal always true."""
    described = np.array([_codes(one.scene, one.detail) for one in descriptions])
    shown = np.array([_codes(one.scene, Detail()) for one in descriptions])
    reverse = np.array([_codes(one.scene.seen_from_second(), Detail()) for one in descriptions])
    return _agree(shown, described) | _agree(reverse, described)


def slots(description: Description) -> list[int]:
    """Classes for `SLOT_CLASSES` by position: left or upper thing, relation, other thing.

    `UNSAID` marks what the label leaves out, and the second thing of a scene of one.
    """
    scene, detail = description.scene, description.detail
    if scene.relation in ("right", "below"):
        scene = scene.seen_from_second()
    codes = _codes(scene, detail)
    if scene.second is None:
        codes[5:9] = [UNSAID] * 4
    return codes


def _agree(shown: NDArray[Any], described: NDArray[Any]) -> NDArray[Any]:
    is_equal = (shown[:, None] == described[None, :]) | (described[None, :] == UNSAID)
    return is_equal.all(-1)


def _codes(scene: Scene, detail: Detail) -> list[int]:
    """One number for each attribute; a scene of one thing has zeros for the second."""
    codes = _thing_codes(scene.first, detail)
    if scene.second is not None and scene.relation is not None:
        codes += [1 + RELATIONS.index(scene.relation), *_thing_codes(scene.second, detail)]
    else:
        codes += [0, 0, 0, 0, 0]
    background = BACKGROUNDS.index(scene.background) if detail.has_background else UNSAID
    return [*codes, background]


def _thing_codes(thing: Thing, detail: Detail) -> list[int]:
    return [
        SIZES.index(thing.size) if detail.has_sizes else UNSAID,
        COLOURS.index(thing.colour) if detail.has_colours else UNSAID,
        TEXTURE_NAMES.index(thing.texture),
        SHAPES.index(thing.shape),
    ]


def _sample(rng: np.random.Generator, found: list[Scene], count: int) -> list[Scene]:
    return [found[index] for index in rng.choice(len(found), count, replace=False)]


def _draw_detail(rng: np.random.Generator) -> Detail:
    if rng.random() < _FULL_DETAIL_SHARE:
        return Detail()
    return Detail(
        has_sizes=bool(rng.random() < 0.5),
        has_colours=bool(rng.random() < 0.8),
        has_background=bool(rng.random() < 0.4),
    )
