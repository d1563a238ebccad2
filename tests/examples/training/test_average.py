"""Averaging two checkpoints of one training."""

from __future__ import annotations

import pytest
import torch

from examples.training.average import averaged


def test_every_tensor_is_the_mean_in_the_later_dtype() -> None:
    mean = averaged({"w": torch.tensor([1.0, 3.0])}, {"w": torch.tensor([3.0, 7.0]).half()})
    assert mean["w"].tolist() == [2.0, 5.0]
    assert mean["w"].dtype is torch.float16


def test_checkpoints_of_different_networks_are_refused() -> None:
    with pytest.raises(ValueError, match="different tensors"):
        averaged({"w": torch.zeros(2)}, {"w": torch.zeros(3)})
