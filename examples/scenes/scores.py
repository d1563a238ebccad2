"""Caption and classification scores on held-out scenes, for any captioner and classifier.

The functions under test are plain callables, so that one measure serves PyTorch, ONNX and the API.
Every scene has a combination of attributes that is in no training picture.

Counts the colours and shapes of things that a caption names correctly, in held-out pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from examples import share_equal
from examples.scenes.patch_labels import covered
from examples.scenes.rendering import SIDE, placements, render
from examples.scenes.scene import SHAPES, Scene, Thing, caption, label, neighbours, scenes
from export.training.functions import CaptionFunction


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


ClassifyFunction = Callable[[Image.Image, list[str]], str]

TEMPLATE = "a photo of a {}"  # the zero-shot labels are written to fit into it
TEST_SCENES, TEST_SEED = 600, 7  # reported in the model cards
_FIRST_PICTURE = 1_000_000_000  # render seeds above those of any training
CHOICES = 22  # labels a picture: the truth and 21 that differ from it in one attribute


@dataclass(frozen=True)
class Question:
    """A picture, labels to choose from, and the one that is true."""

    picture: Image.Image
    labels: list[str]
    truth: str


def heldout_pictures(count: int, seed: int) -> Iterator[tuple[Scene, Image.Image]]:
    """Yields held-out scenes with their pictures, the same ones for the same arguments."""
    for index, scene in enumerate(scenes("heldout", count, seed)):
        yield scene, render(scene, picture_seed(count, seed, index))


def picture_seed(count: int, seed: int, index: int) -> int:
    """The render seed of picture `index` of `heldout_pictures`."""
    return _FIRST_PICTURE + seed * count + index


def questions(count: int, seed: int) -> Iterator[Question]:
    """Yields zero-shot questions about held-out scenes, described from either of their things."""
    rng = np.random.default_rng(seed)
    for scene, picture in heldout_pictures(count, seed):
        described = scene.seen_from_second() if rng.random() < 0.5 else scene
        others = neighbours(described)
        chosen = rng.choice(len(others), CHOICES - 1, replace=False)
        labels = [label(described)] + [label(others[index]) for index in chosen]
        yield Question(picture, [labels[i] for i in rng.permutation(CHOICES)], labels[0])


def caption_exact_match(caption_all: CaptionFunction, count: int, seed: int) -> float:
    """Share of held-out pictures whose caption is the canonical one, word for word."""
    truths, pictures = _captioned_pictures(count, seed)
    return share_equal(caption_all(pictures), truths)


def caption_words_right(caption_all: CaptionFunction, count: int, seed: int) -> float:
    """Share of the canonical captions' words that a caption has in the same place."""
    truths, pictures = _captioned_pictures(count, seed)
    pairs = [
        pair
        for words, truth in zip(caption_all(pictures), truths, strict=True)
        for pair in zip_longest(words.split()[: len(truth.split())], truth.split())
    ]
    return sum(word == truth for word, truth in pairs) / len(pairs)


def swapped_caption_match(caption_all: CaptionFunction, count: int, seed: int) -> float:
    """The control: each caption is compared with the truth of the next picture."""
    truths, pictures = _captioned_pictures(count, seed)
    return share_equal(caption_all(pictures), truths[1:] + truths[:1])


def caption_scores(caption_all: CaptionFunction) -> dict[str, float]:
    """The scores of a model card, by their names there."""
    return {
        "captions that match word for word": caption_exact_match(
            caption_all, TEST_SCENES, TEST_SEED
        ),
        "the same captions, pictures swapped": swapped_caption_match(
            caption_all, TEST_SCENES, TEST_SEED
        ),
    }


def zero_shot_top1(classify: ClassifyFunction, count: int, seed: int) -> float:
    """Share of held-out pictures for which the true label was chosen among `CHOICES`."""
    asked = list(questions(count, seed))
    answers = [classify(question.picture, question.labels) for question in asked]
    return share_equal(answers, [question.truth for question in asked])


def swapped_zero_shot_top1(classify: ClassifyFunction, count: int, seed: int) -> float:
    """The control: the labels of each question with the next picture.

    A good classifier then scores below 1 / `CHOICES`: a label whose one different attribute matches
    the other picture fits better than the true label.
    """
    asked = list(questions(count, seed))
    pictures = [question.picture for question in asked[1:] + asked[:1]]
    answers = [
        classify(picture, question.labels)
        for picture, question in zip(pictures, asked, strict=True)
    ]
    return share_equal(answers, [question.truth for question in asked])


def _captioned_pictures(count: int, seed: int) -> tuple[list[str], list[Image.Image]]:
    pairs = list(heldout_pictures(count, seed))
    return [caption(scene) for scene, _ in pairs], [picture for _, picture in pairs]
