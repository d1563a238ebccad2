"""The attention score: one for attention on the named thing, zero on the other thing."""

import numpy as np
import pytest
from PIL import Image

from examples.scenes.attention import TokenMap, attention_scores
from examples.scenes.captions import caption
from examples.scenes.patch_labels import covered
from examples.scenes.rendering import Placement, placements
from examples.scenes.scene import COLOURS
from examples.scenes.scores import heldout_pictures, picture_seed

COUNT, SEED = 12, 3
BEST, MASS, BLIND, OTHER = range(4)


def observer(is_on_named: bool):
    """Returns true captions with attention on each word's thing, or on the other one."""

    def observe(pictures: list[Image.Image]) -> list[list[TokenMap]]:
        scenes = [scene for scene, _ in heldout_pictures(COUNT, SEED)]
        assert len(pictures) == len(scenes)
        return [tokens(index, scene) for index, scene in enumerate(scenes)]

    def tokens(index, scene):
        regions = [covered(at, 8) for at in placements(scene, picture_seed(COUNT, SEED, index))]
        maps = [region / region.sum() for region in regions]
        thing, maps_of_words = 0, []
        for word in caption(scene).split():
            at = min(thing, len(maps) - 1)
            maps_of_words.append(TokenMap(f" {word}", maps[at if is_on_named else -1 - at]))
            thing += thing < len(scene.things) and word == scene.things[thing].shape
        return maps_of_words

    return observe


def test_attention_on_the_named_thing_scores_one():
    scores = list(attention_scores(observer(True), COUNT, SEED).values())
    assert scores[BEST] == 1
    assert scores[MASS] == pytest.approx(1)
    assert scores[OTHER] < 0.1  # cells that the two share
    assert 0.02 < scores[BLIND] < 0.3


def test_attention_on_the_other_thing_scores_less():
    scores = list(attention_scores(observer(False), COUNT, SEED).values())
    assert scores[OTHER] == pytest.approx(1)
    assert scores[MASS] < 0.6  # only where there is no other thing


def test_wrong_words_do_not_count():
    def observe(pictures: list[Image.Image]) -> list[list[TokenMap]]:
        captions = observer(True)(pictures)
        elsewhere = np.zeros((8, 8))
        return [
            [TokenMap(" rainbow", elsewhere) if g.word.strip() in COLOURS else g for g in tokens]
            for tokens in captions
        ]

    assert list(attention_scores(observe, COUNT, SEED).values())[MASS] == pytest.approx(1)


def test_thing_covers_the_patches_whose_centres_it_contains():
    cells = covered(Placement(x=12, y=36, radius=8), patch=8)
    assert cells[4, 1]  # its own centre
    assert [int(count) for count in cells.sum(axis=1)] == [0, 0, 0, 1, 3, 1, 0, 0]
