"""Buffer reuse: fit, retention and release."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.engine.state.device import HostMemory
from inference.engine.state.state_buffer import BufferPool


def test_released_buffer_is_reused() -> None:
    pool = BufferPool(HostMemory(), limit_bytes=1000)
    buffer = pool.acquire(100, "float32")
    pool.release(buffer)
    assert pool.spare_bytes == 400
    assert pool.acquire(80, "float32") is buffer
    assert pool.spare_bytes == 0


@pytest.mark.parametrize(("needed", "dtype"), [(101, "float32"), (60, "float32"), (100, "int8")])
def test_buffer_that_does_not_fit_is_not_reused(needed: int, dtype: str) -> None:
    """Too small, far too large, or of other numbers: stale int8 could be NaN as float32."""
    pool = BufferPool(HostMemory(), limit_bytes=1000)
    buffer = pool.acquire(100, "float32")
    pool.release(buffer)
    taken = pool.acquire(needed, dtype)
    assert taken is not buffer
    assert (taken.size, taken.dtype) == (needed, np.dtype(dtype))
    assert not taken.any()
    assert pool.spare_bytes == 400


def test_smallest_fitting_buffer_is_reused() -> None:
    pool = BufferPool(HostMemory(), limit_bytes=10_000)
    for size in (140, 110, 130):
        pool.release(np.zeros(size, np.float32))
    assert [pool.acquire(100, "float32").size for _ in range(4)] == [110, 130, 140, 100]


def test_clear_frees_all_buffers() -> None:
    pool = BufferPool(HostMemory(), limit_bytes=1000)
    pool.release(np.zeros(100, np.float32))
    pool.clear()
    assert pool.spare_bytes == 0
    assert not pool.acquire(100, "float32").any()


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 80)), max_size=40))
def test_keeps_within_its_limit(moves: list[tuple[bool, int]]) -> None:
    pool, out = BufferPool(HostMemory(), limit_bytes=400), []
    for is_release, size in moves:
        if is_release and out:
            pool.release(out.pop(size % len(out)))
        else:
            taken = pool.acquire(size, "float32")
            assert taken.size >= size
            assert not any(np.shares_memory(taken, other) for other in out)
            out.append(taken)
        assert pool.spare_bytes <= 400
