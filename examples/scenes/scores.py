"""Caption and classification scores on held-out scenes, for any captioner and classifier.

The functions under test are plain callables, so that one measure serves PyTorch, ONNX and the API.
Every scene has a combination of attributes that is in no training picture.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
from PIL import Image

from examples.scenes.captions import caption, label
from examples.scenes.rendering import render
from examples.scenes.scene import Scene, neighbours, scenes
from examples.training.share import share_equal
from export.training.functions import CaptionFunction

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
