"""Accuracy of a scene classifier, and where its attention falls.

The functions under test are plain callables, so that one measure serves PyTorch, ONNX and the API.
Every picture shows a class with a texture that training never combines with it.

Every class occurs in training. Held-out pictures show a class with a texture that training never
combines with it, so that a held-out score measures composition, not memorisation.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from examples import share_equal
from examples.scenes.patch_labels import covered
from examples.scenes.rendering import SIDE, Placement, placements, render
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


ClassifyFunction = Callable[[list[Image.Image]], list[str]]
AttendFunction = Callable[[list[Image.Image]], list[NDArray[Any]]]
"""Pictures → their attention over the patches, (rows, columns), of sum 1."""

TEST_COUNT, TEST_SEED = 600, 7  # reported in the model card


def class_accuracy(
    classify: ClassifyFunction, count: int, seed: int, *, is_swapped: bool = False
) -> float:
    """Share of pictures with the right class; the control is the next picture's."""
    drawn = list(heldout_pictures(count, seed))
    truths = [class_of(one.scene) for one in drawn]
    if is_swapped:
        truths = truths[1:] + truths[:1]
    return share_equal(classify([one.image for one in drawn]), truths)


def class_scores(classify: ClassifyFunction) -> dict[str, float]:
    """The scores of a model card, by their names there."""
    return {
        "right classes": class_accuracy(classify, TEST_COUNT, TEST_SEED),
        "control: the next picture's class": class_accuracy(
            classify, TEST_COUNT, TEST_SEED, is_swapped=True
        ),
    }


def attention_shares(attend: AttendFunction, count: int, seed: int) -> dict[str, float]:
    """Shares of the attention on the largest thing and beside it, by area.

    A patch belongs to the thing that covers its centre. Uniform attention is the baseline; the
    control is the attention on the smaller thing of pictures that have one, beside its area.
    """
    drawn = list(heldout_pictures(count, seed))
    maps = attend([one.image for one in drawn])
    largest, area, is_highest, other, other_area = [], [], [], [], []
    for one, weights in zip(drawn, maps, strict=True):
        regions = [covered(place, SIDE // len(weights)) for place in one.places]
        share = weights / weights.sum()
        largest.append(share[regions[0]].sum())
        area.append(regions[0].mean())
        is_highest.append(regions[0].flat[share.argmax()])
        if len(regions) > 1:
            other.append(share[regions[1]].sum())
            other_area.append(regions[1].mean())
    return {
        "highest attention on the largest thing": float(np.mean(is_highest)),
        "attention on the largest thing": float(np.mean(largest)),
        "uniform attention on it": float(np.mean(area)),
        "attention on the smaller thing": float(np.mean(other)),
        "uniform attention on that": float(np.mean(other_area)),
    }
