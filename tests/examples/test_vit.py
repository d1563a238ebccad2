"""The ViT example and its task."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import torch

from examples.scenes.patch_labels import covered
from examples.scenes.rendering import SIDE
from examples.scenes.scene import Scene, Thing
from examples.vit.card import Measured, roll_out
from examples.vit.scores import (
    CLASSES,
    attention_shares,
    class_accuracy,
    class_of,
    heldout_pictures,
    is_decided,
    pictures,
)
from examples.vit.train import OUTPUT

COUNT = 150  # pictures


@pytest.fixture(scope="module")
def measured() -> Measured:
    return Measured(OUTPUT)


def test_checkpoint_is_small():
    assert sum(path.stat().st_size for path in OUTPUT.iterdir()) <= 1_500_000


def test_withheld_combinations_are_classified(measured: Measured):
    assert class_accuracy(measured.classify, COUNT, seed=3) >= 0.7
    assert class_accuracy(measured.classify, COUNT, seed=3, is_swapped=True) < 0.1


def test_attention_falls_on_the_largest_thing(measured: Measured):
    shares = attention_shares(measured.attend, COUNT, seed=3)
    assert shares["highest attention on the largest thing"] >= 0.8
    largest = shares["attention on the largest thing"] / shares["uniform attention on it"]
    smaller = shares["attention on the smaller thing"] / shares["uniform attention on that"]
    assert largest > 1.6
    assert largest > smaller


def test_roll_out_of_uniform_layers_is_uniform():
    layer = torch.full((1, 3, 17, 17), 1 / 17)
    assert torch.allclose(torch.from_numpy(roll_out((layer, layer))), torch.full((1, 4, 4), 1 / 16))


SMALL, LARGE = Thing("small", "red", "plain", "star"), Thing("large", "blue", "striped", "ring")


def test_class_is_colour_and_shape_of_the_largest_thing():
    assert class_of(Scene(SMALL, "gray", "left", LARGE)) == "blue ring"
    assert class_of(Scene(LARGE, "gray", "above", SMALL)) == "blue ring"
    assert class_of(Scene(SMALL, "white")) == "red star"


def test_two_things_of_one_size_have_no_class():
    other = Thing("small", "green", "plain", "heart")
    assert not is_decided(Scene(SMALL, "gray", "left", other))
    assert is_decided(Scene(SMALL, "gray", "left", LARGE))


def test_training_shows_every_class_but_no_withheld_combination(monkeypatch):
    monkeypatch.setattr("examples.vit.scores.render", lambda *_: None)
    scenes = [scene for scene, _ in islice(pictures("train", 0), 4000)]
    assert {class_of(scene) for scene in scenes} == set(CLASSES)
    assert not any(scene.is_withheld for scene in scenes)


def test_heldout_pictures_show_a_withheld_thing_at_its_place():
    for drawn in heldout_pictures(30, seed=1):
        assert drawn.scene.canonical().first.is_withheld
        pixels = np.asarray(drawn.image).astype(float)
        region = covered(drawn.places[0], 1)
        assert abs(pixels[region].mean(0) - pixels[~region].mean(0)).max() > 10


def test_perfect_classes_score_one_and_swapped_ones_little():
    truth = {one.image.tobytes(): class_of(one.scene) for one in heldout_pictures(40, seed=9)}

    def classify(images):
        return [truth[image.tobytes()] for image in images]

    assert class_accuracy(classify, 40, seed=9) == 1.0
    assert class_accuracy(classify, 40, seed=9, is_swapped=True) < 0.2


def test_uniform_attention_has_the_share_of_the_area():
    side = SIDE // 8
    uniform = [np.full((side, side), 1 / side**2) for _ in range(40)]
    shares = attention_shares(lambda images: uniform, 40, seed=9)
    assert np.isclose(shares["attention on the largest thing"], shares["uniform attention on it"])
    assert np.isclose(shares["attention on the smaller thing"], shares["uniform attention on that"])


def test_attention_on_the_thing_alone_has_all_the_share():
    maps = [
        covered(one.places[0], 8) / covered(one.places[0], 8).sum()
        for one in heldout_pictures(40, seed=9)
    ]
    shares = attention_shares(lambda images: maps, 40, seed=9)
    assert np.isclose(shares["attention on the largest thing"], 1.0)
    assert shares["highest attention on the largest thing"] == 1.0
