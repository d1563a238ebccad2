"""Scores by distance against scores by position, pair by pair."""

from __future__ import annotations

import pytest
import torch

from export.layers.attention.relative import by_distance


@pytest.mark.parametrize("size", [1, 2, 5])
def test_score_of_a_pair_is_that_of_its_distance(size: int) -> None:
    scores = torch.randn(2, 3, size, 2 * size - 1, generator=torch.Generator().manual_seed(0))
    placed = by_distance(scores)
    assert placed.shape == (2, 3, size, size)
    for query in range(size):
        for key in range(size):
            want = scores[:, :, query, key - query + size - 1]
            torch.testing.assert_close(placed[:, :, query, key], want, rtol=0, atol=0)
