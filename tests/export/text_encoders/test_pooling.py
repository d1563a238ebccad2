"""Pooling against plain arithmetic on each row without its padding."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from export.text_encoders.pooling import Pooling, PoolingMode

LENGTHS = (5, 3, 1)
EXPECTED: dict[str, Callable[[Tensor], Tensor]] = {
    "cls": lambda row: row[0],
    "max": lambda row: torch.stack([max(column) for column in row.T]),
    "mean": lambda row: sum(row) / len(row),
    "mean_sqrt_len": lambda row: sum(row) / len(row) ** 0.5,
    "weighted_mean": lambda row: (
        sum((rank + 1) * vector for rank, vector in enumerate(row)) / sum(range(len(row) + 1))
    ),
    "last": lambda row: row[-1],
}


def _hidden() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.rand(3, 5, 7, generator=generator) - 2  # all negative: padding is no maximum
    return hidden, torch.tensor(LENGTHS, dtype=torch.int32)


def _rows(pool: Callable[[Tensor], Tensor]) -> Tensor:
    hidden, _ = _hidden()
    return torch.stack([pool(row[:size]) for row, size in zip(hidden, LENGTHS, strict=True)])


@pytest.mark.parametrize("mode", PoolingMode)
def test_pooling_ignores_padding(mode: PoolingMode) -> None:
    pooled = Pooling((mode,), layers=())(*_hidden())
    torch.testing.assert_close(pooled, _rows(EXPECTED[mode]))


def test_modes_are_concatenated_in_their_order() -> None:
    pooling = Pooling((PoolingMode.MEAN, PoolingMode.CLS), layers=())
    want = torch.cat([_rows(EXPECTED["mean"]), _rows(EXPECTED["cls"])], dim=1)
    torch.testing.assert_close(pooling(*_hidden()), want)
    assert pooling.output_width(7) == 14


def test_vectors_have_unit_length_by_default() -> None:
    pooled = Pooling()(*_hidden())
    torch.testing.assert_close(pooled.norm(dim=1), torch.ones(3))
    mean = _rows(EXPECTED["mean"])
    torch.testing.assert_close(pooled, mean / mean.norm(dim=1, keepdim=True))
