"""Requests that join a running decoder, each at its own step."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from inference.engine.engine_core import EngineCore
from inference.engine.search.request import EngineRequest, Event
from inference.engine.sequence import SequenceState

company = st.lists(
    st.tuples(
        st.integers(0, 20), st.integers(0, 999), st.sampled_from([1, 2, 3]), st.integers(1, 40)
    ),
    min_size=1,
    max_size=6,
)
"""The step at which each request joins; its seed, beams and tokens."""


def run_staggered(
    decoder: EngineCore, requests: Sequence[EngineRequest], steps: Sequence[int] | None = None
) -> list[list[Event]]:
    """The events of each.

    Args:
        steps: When each joins; by default one at each step.
    """
    outcomes: list[list[Event]] = [[] for _ in requests]
    due = dict(enumerate(range(len(requests)) if steps is None else steps))
    step = 0
    while due or not decoder.is_idle:
        for index in [index for index, when in due.items() if when <= step]:
            del due[index]
            decoder.add(SequenceState(requests[index], outcomes[index].append))
        decoder.step()
        step += 1
        assert step < 5000, "sequences wait for ever"
    return outcomes
