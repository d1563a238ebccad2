"""Sizes told in advance are the sizes that arenas take."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.bundle import Growth, State
from serving.engine.footprint import Extent, Footprint, bucket
from serving.engine.memory import Memory
from serving.engine.state import GroupState

STATES = (
    State(name="key", growth=Growth.APPEND, dtype="float32", shape=("R", 2, "P", 8),
          step_input="past", step_output="present", layout="in_place"),
    State(name="hidden", growth=Growth.REPLACE, dtype="float32", shape=("R", 5),
          step_input="hidden", step_output="next"),
    State(name="memory", growth=Growth.HOLD, dtype="float16", shape=("B", 3, "S", 4),
          step_input="memory", admit_output="memory"),
    State(name="picture", growth=Growth.HOLD, dtype="float32", shape=("B", 7, 2),
          step_input="picture", admit_output="picture"),
)  # fmt: skip


def test_bytes_are_those_of_the_shapes() -> None:
    assert Footprint.of(STATES) == Footprint(position=64, row=20, source=24, sequence=56)


@given(st.integers(1, 5000), st.sampled_from([1, 16]))
def test_bucket_holds_and_wastes_at_most_half(length: int, smallest: int) -> None:
    size = bucket(length, smallest)
    assert length <= size <= max(1.5 * length, smallest)


@pytest.mark.parametrize(
    ("now", "tight", "claim", "settled"),
    [(0, 16, 64, 32), (16, 24, 32, 32), (16, 48, 48, 48), (32, 16, 64, 32), (0, 16, 0, 16)],
)
def test_positions_are_made_for_as_many_again_as_far_as_claimed(
    now: int, tight: int, claim: int, settled: int
) -> None:
    found = Extent(1, now, 16).settled(Extent(1, tight, 16), Extent(1, claim, 16))
    assert found == Extent(1, settled, 16)


@given(
    width=st.integers(1, 4),
    moves=st.lists(st.tuples(st.integers(1, 200), st.integers(1, 90), st.booleans()), max_size=30),
    coming=st.integers(0, 40),
)
def test_arenas_take_what_was_told(
    width: int, moves: list[tuple[int, int, bool]], coming: int
) -> None:
    state, footprint = GroupState(STATES, width, Memory(1 << 20)), Footprint.of(STATES)
    claim = Extent()
    for length, source, leaves in moves:
        if leaves and len(state):
            state.retire(0)
            state.reserve(len(state), 0)
        else:
            longest = max((*state.lengths, length)), max((*state.source_lengths, source))
            claim = claim.covering(Extent.holding(len(state) + 1, *longest))
            state.claim, state.coming = claim, coming
            state.reserve(len(state) + 1, length, source)
            state.admit(length, source)
        assert state.nbytes <= footprint.bytes(width, claim)
        tight = Extent.holding(
            len(state), max(state.lengths, default=0), max(state.source_lengths, default=0)
        )
        if leaves:
            state.tighten()
            assert state.nbytes == footprint.bytes(width, tight)
            claim = tight
