"""Contents of arenas whose buffers are reused."""

from __future__ import annotations

import numpy as np
import pytest

from inference.bundle.manifest import Growth, State
from inference.engine.state.device import HostMemory
from inference.engine.state.group_state import GroupState
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
    return GroupState((HELD,), 1, Dirty(HostMemory(), limit_bytes=0))


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
    alone = GroupState((HELD,), 1, Dirty(HostMemory(), limit_bytes=0))
    enter(alone, 5)
    enter(state, 40)
    state.ensure_capacity(2, 1, 5)
    state.adopt(alone)
    assert_zero_behind_sources(state)
