"""Accuracy of a scene classifier, and where its attention falls.

The functions under test are plain callables, so that one measure serves PyTorch, ONNX and the API.
Every picture shows a class with a texture that training never combines with it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from examples.scenes.patch_labels import covered
from examples.scenes.rendering import SIDE
from examples.training.share import share_equal
from examples.vit.largest_thing import class_of, heldout_pictures

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
