"""The committed ViT is small, classifies withheld combinations and attends to their things."""

import pytest
import torch

from examples.vit.card import Measured, roll_out
from examples.vit.scores import attention_shares, class_accuracy
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
