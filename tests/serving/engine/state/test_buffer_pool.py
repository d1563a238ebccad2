"""Buffers that are used again: what fits, what is kept, what is given back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.engine.state.buffer_pool import BufferPool


def test_takes_what_was_given() -> None:
    memory = BufferPool(limit_bytes=1000)
    buffer = memory.take(100, "float32")
    memory.give(buffer)
    assert memory.spare_bytes == 400
    assert memory.take(80, "float32") is buffer
    assert memory.spare_bytes == 0


@pytest.mark.parametrize(("needed", "dtype"), [(101, "float32"), (60, "float32"), (100, "int8")])
def test_leaves_what_does_not_fit(needed: int, dtype: str) -> None:
    """Too small, far too large, or of other numbers: stale int8 could be NaN as float32."""
    memory = BufferPool(limit_bytes=1000)
    buffer = memory.take(100, "float32")
    memory.give(buffer)
    taken = memory.take(needed, dtype)
    assert taken is not buffer
    assert (taken.size, taken.dtype) == (needed, np.dtype(dtype))
    assert not taken.any()
    assert memory.spare_bytes == 400


def test_takes_the_tightest() -> None:
    memory = BufferPool(limit_bytes=10_000)
    for size in (140, 110, 130):
        memory.give(np.zeros(size, np.float32))
    assert [memory.take(100, "float32").size for _ in range(4)] == [110, 130, 140, 100]


def test_clear_gives_everything_back() -> None:
    memory = BufferPool(limit_bytes=1000)
    memory.give(np.zeros(100, np.float32))
    memory.clear()
    assert memory.spare_bytes == 0
    assert not memory.take(100, "float32").any()


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 80)), max_size=40))
def test_keeps_within_its_limit(moves: list[tuple[bool, int]]) -> None:
    memory, out = BufferPool(limit_bytes=400), []
    for gives, size in moves:
        if gives and out:
            memory.give(out.pop(size % len(out)))
        else:
            taken = memory.take(size, "float32")
            assert taken.size >= size
            assert not any(np.shares_memory(taken, other) for other in out)
            out.append(taken)
        assert memory.spare_bytes <= 400
