"""Few-shot classification of pictures by a linear probe, and zero-shot by templates.

The functions under test are plain callables, so that one measure serves PyTorch, ONNX and the API.
Classes are texture and shape of pictures with one thing; test pictures show a class in a colour
that training never combines with it.

Source: Radford et al. 2021, §3.1.4 (prompts, ensembles) and §3.1.5 (linear probes by shots), arXiv
2103.00020.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from examples.scenes.rendering import render
from examples.scenes.scene import SHAPES, TEXTURE_NAMES, Detail, Split, label, scenes

EmbedFunction = Callable[[list[Image.Image]], NDArray[Any]]
"""Pictures → unit vectors (B, D)."""
ChooseFunction = Callable[[list[Image.Image], Sequence[str]], list[str]]
"""Pictures and labels to choose from → one label a picture."""

LABELS = tuple(
    shape if texture == "plain" else f"{texture} {shape}"
    for texture in TEXTURE_NAMES
    for shape in SHAPES
)
FAMILIAR = (
    "a photo of a {}",
    "a picture of a {}",
    "an image of a {}",
    "a drawing of a {}",
    "a small picture that shows a {}",
    "a {}",
    "{}",
)
"""Templates in which `examples/clip/contrast.py` describes its pictures."""
FOREIGN = (
    "a rendering of the {}",
    "graphics: {}",
    "there is a {} here",
    "we see the {}",
    "my {}",
    "itap of a {}",
    "the {} in front of something",
)
"""Templates with words that the example's CLIP has never read."""
SHOTS = (1, 2, 4, 8, 16)
DRAWS = 3
"""Up to so many probes, each on examples of its own, are averaged."""
TEST_SEED = 7
_PROBE_SEED = 11
_PENALTY = 1e-3
_STEPS = 400
_RENDER_SEEDS: dict[Split, int] = {"train": 3_000_000_000, "heldout": 3_500_000_000}
_ONLY_TEXTURE_AND_SHAPE = Detail(has_sizes=False, has_colours=False, has_background=False)


@dataclass(frozen=True)
class Labelled:
    """Pictures and the index of each one's class in `LABELS`."""

    images: list[Image.Image]
    classes: NDArray[np.int64]


def chosen_share(choose: ChooseFunction, count: int) -> float:
    """Share of test pictures for which the right one of all labels was chosen."""
    test = heldout_pictures(count)
    answers = choose(test.images, LABELS)
    truths = [LABELS[index] for index in test.classes]
    return float(np.mean([a == truth for a, truth in zip(answers, truths, strict=True)]))


def probe_share(embed: EmbedFunction, shots: int, count: int) -> float:
    """Share of test pictures that probes on `shots` examples of each class get right."""
    test = heldout_pictures(count)
    sought = embed(test.images)
    shares = []
    for draw in range(min(DRAWS, max(SHOTS) // shots)):
        examples = example_pictures(shots, draw)
        weights, biases = probe(embed(examples.images), examples.classes)
        shares.append((sought @ weights + biases).argmax(axis=1) == test.classes)
    return float(np.mean(shares))


def probe(vectors: NDArray[Any], classes: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Weights (D, C) and biases (C,) of a logistic regression on vectors (B, D).

    Minimises the mean cross entropy and a penalty on the squared weights by Nesterov's gradient
    descent; vectors are centred and scaled first, so that one step size fits.
    """
    mean, scale = vectors.mean(axis=0), np.sqrt(vectors.var(axis=0).mean())
    x = np.hstack([(vectors - mean) / scale, np.ones((len(vectors), 1))])
    wanted = np.eye(len(LABELS))[classes]
    weights = np.zeros((x.shape[1], len(LABELS)))
    ahead = weights
    curvature = np.linalg.eigvalsh(x.T @ x / len(x)).max() / 2 + _PENALTY
    for step in range(_STEPS):
        logits = x @ ahead
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        descended = ahead - (x.T @ (shares - wanted) / len(x) + _PENALTY * ahead) / curvature
        ahead = descended + step / (step + 3) * (descended - weights)
        weights = descended
    slopes = weights[:-1] / scale
    return slopes, weights[-1] - mean @ slopes


@cache
def heldout_pictures(count: int) -> Labelled:
    """Pictures of withheld combinations."""
    return _drawn("heldout", count, [], TEST_SEED)


@cache
def example_pictures(shots: int, draw: int) -> Labelled:
    """`shots` training pictures of each class, others for each draw."""
    room = list(range(len(LABELS))) * shots
    return _drawn("train", len(room), room, _PROBE_SEED + 100 * shots + draw)


def _drawn(split: Split, count: int, room: list[int], seed: int) -> Labelled:
    """The next pictures with one thing; with `room`, only those of classes that it still has."""
    images, classes, room = [], [], list(room)
    is_bounded = bool(room)
    for index, scene in enumerate(scenes(split, sys.maxsize, seed)):
        if scene.second is not None:
            continue
        number = LABELS.index(label(scene, _ONLY_TEXTURE_AND_SHAPE))
        if is_bounded and number not in room:
            continue
        if is_bounded:
            room.remove(number)
        images.append(render(scene, _RENDER_SEEDS[split] + seed * 100_000 + index))
        classes.append(number)
        if len(images) == count:
            break
    return Labelled(images, np.array(classes))
