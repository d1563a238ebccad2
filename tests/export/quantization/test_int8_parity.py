"""How lowered graphs are compared with their originals."""

from __future__ import annotations

import numpy as np
import pytest

from export.parity.parity_inputs import Observation
from export.quantization.int8_parity import (
    LEAST_COSINE,
    joined,
    least_cosine,
    least_cosines,
    required_cosine,
)


def _relevance(*numbers: float) -> list[Observation]:
    return [
        Observation(f"text B=1 T={index + 4} logits", np.array([[number]], np.float32))
        for index, number in enumerate(numbers)
    ]


def test_single_numbers_are_compared_together() -> None:
    """A row of one number has no angle: its cosine is 1 or, at a change of sign, -1."""
    wanted = _relevance(-4.0, 3.0, 0.01)
    assert least_cosine(wanted, _relevance(-4.0, 3.0, -0.01))[0] > 0.99999
    worst, place = least_cosine(wanted, _relevance(-4.0, -3.0, 0.01))
    assert worst < 0.5
    assert place == "text logits"


def test_rows_of_several_numbers_stay_as_they_are() -> None:
    rows = [Observation("text B=2 T=4 logits", np.eye(2, dtype=np.float32))]
    assert joined(rows) == rows


def test_worst_row_is_found_and_nan_is_the_worst() -> None:
    want, got = np.eye(2, dtype=np.float32), np.array([[1, 0.1], [0.5, 1]], np.float32)
    wanted = [Observation("text B=2 T=4 logits", want), Observation("text x:3 logits", want)]
    given = [Observation("", want), Observation("", got)]
    worst, place = least_cosine(wanted, given)
    assert place == "text x:3 logits"
    assert worst == pytest.approx(1 / np.sqrt(1.25))
    assert np.isnan(least_cosine(wanted, [given[1], Observation("", got * np.nan)])[0])
    assert least_cosines(wanted, given)["text logits"] == pytest.approx(worst)


def test_verification_requires_what_the_export_measured() -> None:
    assert required_cosine({}) == (LEAST_COSINE, "")
    assert required_cosine({"int8": {"calibration": None}}) == (LEAST_COSINE, "")
    recorded = {"calibration": {"from": ["a.txt"]}, "random_cosine": 0.9, "least_cosine": 0.995}
    required, why = required_cosine({"int8": recorded})
    assert required == pytest.approx(0.89)
    assert "0.9950 on samples of a.txt" in why
    assert required_cosine({"int8": recorded | {"random_cosine": 1.0}})[0] == LEAST_COSINE
