"""Buffers of states: contents, reuse, and computed sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.bundle.manifest import Growth, State
from inference.engine.runners.ort.device import CpuDevice
from inference.engine.state.group_state import BufferShape, GroupState, MemoryModel, bucket
from inference.engine.state.state_buffer import BufferPool

HELD = State(
    name="keys",
    growth=Growth.HOLD,
    dtype="float32",
    shape=("B", 2, "S", 3),
    step_input="keys",
    admit_output="keys",
)


class Dirty(BufferPool):
    """Returns buffers of NaN, as a model that overflowed would release them."""

    def acquire(self, needed: int, dtype: str) -> np.ndarray:
        return np.full(needed, np.nan, dtype)


@pytest.fixture
def state() -> GroupState:
    return GroupState((HELD,), 1, Dirty(CpuDevice(), limit_bytes=0))


def enter(state: GroupState, source: int) -> None:
    """One more sequence, whose keys are ones."""
    slot = len(state)
    state.ensure_capacity(slot + 1, 1, source)
    state.of(Growth.HOLD)[0].write(slot, np.ones((1, 2, source, 3), np.float32))
    state.admit(1, source)


def assert_zero_behind_sources(state: GroupState) -> None:
    (arena,) = state.of(Growth.HOLD)
    for cells, source in zip(arena.view(slice(0, len(state))), state.source_lengths, strict=True):
        assert (cells[:, :source] == 1).all()
        assert (cells[:, source:] == 0).all()


def test_written_rows_are_zero_behind_sources(state: GroupState) -> None:
    enter(state, 5)
    assert_zero_behind_sources(state)


def test_resized_arenas_are_zero_behind_sources(state: GroupState) -> None:
    enter(state, 5)
    enter(state, 40)
    assert_zero_behind_sources(state)


def test_a_move_is_announced_while_arenas_are_where_they_were(state: GroupState) -> None:
    enter(state, 5)
    announced: list[int] = []
    state.before_move = lambda: announced.append(state.of(Growth.HOLD)[0].capacity)
    state.ensure_capacity(1, 1, 5)
    assert announced == []
    enter(state, 5)
    state.shrink()
    state.release()
    assert announced == [1, 2]


def test_moved_rows_are_zero_behind_sources(state: GroupState) -> None:
    enter(state, 40)
    enter(state, 5)
    state.retire(0)
    assert_zero_behind_sources(state)


def test_adopted_rows_are_zero_behind_sources(state: GroupState) -> None:
    alone = GroupState((HELD,), 1, Dirty(CpuDevice(), limit_bytes=0))
    enter(alone, 5)
    enter(state, 40)
    state.ensure_capacity(2, 1, 5)
    state.adopt(alone)
    assert_zero_behind_sources(state)


STATES = (
    State(name="key", growth=Growth.APPEND, dtype="float32", shape=("R", 2, "P", 8),
          step_input="past", step_output="present", layout="in_place"),
    State(name="value", growth=Growth.APPEND, dtype="int8", shape=("R", 2, "P", 8), prefix=5,
          step_input="value", step_output="next_value", admit_output="first", layout="in_place"),
    State(name="hidden", growth=Growth.REPLACE, dtype="float32", shape=("R", 5),
          step_input="hidden", step_output="next"),
    State(name="memory", growth=Growth.HOLD, dtype="float16", shape=("B", 3, "S", 4),
          step_input="memory", admit_output="memory"),
    State(name="picture", growth=Growth.HOLD, dtype="float32", shape=("B", 7, 2),
          step_input="picture", admit_output="picture"),
)  # fmt: skip


def test_bytes_are_those_of_the_shapes() -> None:
    assert MemoryModel.of(STATES) == MemoryModel(position=80, row=100, source=24, sequence=56)


@given(st.integers(1, 5000), st.sampled_from([1, 16]))
def test_bucket_holds_and_wastes_at_most_half(length: int, smallest: int) -> None:
    size = bucket(length, smallest)
    assert length <= size <= max(1.5 * length, smallest)


@pytest.mark.parametrize(
    ("now", "tight", "reservation", "settled"),
    [(0, 16, 64, 32), (16, 24, 32, 32), (16, 48, 48, 48), (32, 16, 64, 32), (0, 16, 0, 16)],
)
def test_positions_double_within_the_reservation(
    now: int, tight: int, reservation: int, settled: int
) -> None:
    found = BufferShape(1, now, 16).adapt(
        BufferShape(1, tight, 16), BufferShape(1, reservation, 16)
    )
    assert found == BufferShape(1, settled, 16)


@given(
    width=st.integers(1, 4),
    moves=st.lists(st.tuples(st.integers(1, 200), st.integers(1, 90), st.booleans()), max_size=30),
    expected_sequences=st.integers(0, 40),
)
def test_arenas_never_exceed_their_footprint(
    width: int, moves: list[tuple[int, int, bool]], expected_sequences: int
) -> None:
    state, footprint = (
        GroupState(STATES, width, BufferPool(CpuDevice(), 1 << 20)),
        MemoryModel.of(STATES),
    )
    reservation = BufferShape()
    for length, source, is_retired in moves:
        if is_retired and len(state):
            state.retire(0)
            state.ensure_capacity(len(state), 0)
        else:
            longest = max((*state.lengths, length)), max((*state.source_lengths, source))
            reservation = reservation.union(BufferShape.holding(len(state) + 1, *longest))
            state.reservation, state.expected_sequences = reservation, expected_sequences
            state.ensure_capacity(len(state) + 1, length, source)
            state.admit(length, source)
        assert state.nbytes <= footprint.bytes(width, reservation)
        tight = BufferShape.holding(
            len(state), max(state.lengths, default=0), max(state.source_lengths, default=0)
        )
        if is_retired:
            state.shrink()
            assert state.nbytes == footprint.bytes(width, tight)
            reservation = tight


def test_released_buffer_is_reused() -> None:
    pool = BufferPool(CpuDevice(), limit_bytes=1000)
    buffer = pool.acquire(100, "float32")
    pool.release(buffer)
    assert pool.spare_bytes == 400
    assert pool.acquire(80, "float32") is buffer
    assert pool.spare_bytes == 0


@pytest.mark.parametrize(("needed", "dtype"), [(101, "float32"), (60, "float32"), (100, "int8")])
def test_buffer_that_does_not_fit_is_not_reused(needed: int, dtype: str) -> None:
    """Too small, far too large, or of other numbers: stale int8 could be NaN as float32."""
    pool = BufferPool(CpuDevice(), limit_bytes=1000)
    buffer = pool.acquire(100, "float32")
    pool.release(buffer)
    taken = pool.acquire(needed, dtype)
    assert taken is not buffer
    assert (taken.size, taken.dtype) == (needed, np.dtype(dtype))
    assert not taken.any()
    assert pool.spare_bytes == 400


def test_smallest_fitting_buffer_is_reused() -> None:
    pool = BufferPool(CpuDevice(), limit_bytes=10_000)
    for size in (140, 110, 130):
        pool.release(np.zeros(size, np.float32))
    assert [pool.acquire(100, "float32").size for _ in range(4)] == [110, 130, 140, 100]


def test_clear_frees_all_buffers() -> None:
    pool = BufferPool(CpuDevice(), limit_bytes=1000)
    pool.release(np.zeros(100, np.float32))
    pool.clear()
    assert pool.spare_bytes == 0
    assert not pool.acquire(100, "float32").any()


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 80)), max_size=40))
def test_keeps_within_its_limit(moves: list[tuple[bool, int]]) -> None:
    pool, out = BufferPool(CpuDevice(), limit_bytes=400), []
    for is_release, size in moves:
        if is_release and out:
            pool.release(out.pop(size % len(out)))
        else:
            taken = pool.acquire(size, "float32")
            assert taken.size >= size
            assert not any(np.shares_memory(taken, other) for other in out)
            out.append(taken)
        assert pool.spare_bytes <= 400
