"""Requests that join a running decoder, each at its own step."""

from __future__ import annotations

from collections.abc import Sequence

from inference.engine.engine_core import EngineCore
from inference.engine.search.request import EngineRequest, Event
from inference.engine.sequence import SequenceState


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
    return outcomes
