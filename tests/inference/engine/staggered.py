"""Requests that join a running decoder, each at its own step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from hypothesis import strategies as st

from inference.engine.engine_core import EngineCore, final_result
from inference.engine.search.request import EngineRequest, Event
from inference.engine.sequence import SequenceState
from inference.generation import Generation
from inference.sequences import Finished

company = st.lists(
    st.tuples(
        st.integers(0, 20), st.integers(0, 999), st.sampled_from([1, 2, 3]), st.integers(1, 40)
    ),
    min_size=1,
    max_size=6,
)
"""The step at which each request joins; its seed, beams and tokens."""


Talk = list[tuple[int, int, int, int, int]]
talk = st.lists(
    st.tuples(
        *(st.integers(0, 9), st.integers(0, 12), st.integers(1, 30)),
        *(st.sampled_from([1, 1, 2, 3]), st.integers(1, 20)),
    ),
    min_size=2,
    max_size=6,
)
"""Turns of conversations: the turn that each goes on behind, how many of its last tokens it leaves
out, how many it adds; its beams and tokens."""
_LONGEST = 90


def converse(
    decoder: EngineCore, rules: Callable[[int, int], Generation], talk: Talk
) -> tuple[list[EngineRequest], list[Finished]]:
    """Requests and results of turns, two at once that differ in their prompts' last token.

    Args:
        rules: (beams, tokens) → those of a turn.
    """
    said: list[tuple[int, ...]] = [()]
    asked: list[EngineRequest] = []
    found: list[Finished] = []
    for before, left_out, added, beams, tokens in talk:
        earlier = said[before % len(said)]
        words = np.random.default_rng(added).integers(2, 6, added).tolist()
        prompt = (*earlier[: max(0, len(earlier) - left_out)], *words)[:_LONGEST]
        pair = [
            EngineRequest(rules(beams, tokens), prompt_ids=(*prompt, last), stream=beams == 1)
            for last in (2, 3)
        ]
        results = [final_result(events) for events in run_staggered(decoder, pair, [0, 0])]
        for request, result in zip(pair, results, strict=True):
            said.append((*request.prompt_ids, *result.hypotheses[0].token_ids))
        asked += pair
        found += results
    return asked, found


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
