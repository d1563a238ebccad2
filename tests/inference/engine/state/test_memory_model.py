"""Computed sizes are the sizes that arenas allocate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.bundle.manifest import Growth, State
from inference.engine.state.device import HostMemory
from inference.engine.state.group_state import GroupState
from inference.engine.state.memory_model import BufferShape, MemoryModel, bucket
from inference.engine.state.state_buffer import BufferPool

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
    found = BufferShape(1, now, 16).settled(
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
        GroupState(STATES, width, BufferPool(HostMemory(), 1 << 20)),
        MemoryModel.of(STATES),
    )
    reservation = BufferShape()
    for length, source, is_retired in moves:
        if is_retired and len(state):
            state.retire(0)
            state.ensure_capacity(len(state), 0)
        else:
            longest = max((*state.lengths, length)), max((*state.source_lengths, source))
            reservation = reservation.covering(BufferShape.holding(len(state) + 1, *longest))
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
