"""What takes the place of image tokens in a call, whatever else is in it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from inference.engine.runners.openvino.prompt_images import ImageRows

TOKEN, NAME = 7, "vectors"


@given(
    is_image=st.lists(st.booleans(), min_size=1, max_size=30),
    given_rows=st.integers(0, 12),
    left_out=st.integers(0, 4),
    cuts=st.lists(st.integers(0, 30), max_size=3),
)
def test_chunks_have_the_rows_of_their_image_tokens_in_order(
    is_image: list[bool], given_rows: int, left_out: int, cuts: list[int]
) -> None:
    ids = np.array([TOKEN if each else 3 for each in is_image])
    rows = np.arange(left_out, left_out + given_rows)[:, None]
    found = ImageRows(ids, TOKEN, {NAME: rows}, left_out)
    passed = np.cumsum(is_image)
    first = min(len(ids), int(np.searchsorted(passed, left_out)) + 1) if left_out else 0
    places = sorted({first, len(ids), *(max(first, min(cut, len(ids))) for cut in cuts)})
    for start, stop in pairwise(places):
        numbers = [int(passed[t]) - 1 for t in range(start, stop) if is_image[t]]
        wanted = [number for number in numbers if number < left_out + given_rows]
        assert found.of(start, stop)[NAME][:, 0].tolist() == wanted


def test_tokens_behind_an_image_are_shifted_by_it() -> None:
    """An image of three vectors that takes two positions, then one of two that takes one."""
    ids = np.array([3, TOKEN, TOKEN, TOKEN, 3, TOKEN, TOKEN, 3, TOKEN])
    places = np.zeros((5, 4), np.int64)
    places[0, 3] = places[3, 3] = -1
    places[:, 0] = np.arange(5)
    found = ImageRows(ids, TOKEN, {"places": places}, places="places")
    assert found.shifts(0, 9).tolist() == [0, -1, -1, -1, -1, -2, -2, -2, -2]
    assert found.shifts(4, 6).tolist() == [-1, -2]
    assert found.last_shift == -2
    assert found.of(2, 6)["places"].tolist() == [[n, 0, 0, 0] for n in (1, 2, 3)]
