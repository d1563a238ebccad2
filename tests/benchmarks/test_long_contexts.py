"""Conversations of the benchmark grow by all that was said."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.long_contexts import REPLY, TURN, TURNS, tokens_of, turns
from inference.sequences import TokenChunk


class Echo:
    """Takes as many seconds as a prompt has tokens."""

    def __init__(self) -> None:
        self.prompts: list[list[int]] = []

    def first_token_s(self, prompt: Sequence[int]) -> tuple[float, list[int]]:
        self.prompts.append(list(prompt))
        return float(len(prompt)), [7] * REPLY


def test_each_turn_has_the_earlier_ones_and_their_answers_before_it() -> None:
    model: Any = Echo()
    found = turns(model, np.random.default_rng(0))
    alone, whole = model.prompts[::2], model.prompts[1::2]
    assert found == [1 + turn * (TURN + REPLY) / TURN for turn in range(TURNS)]
    assert {len(each) for each in alone} == {TURN}
    for before, after in pairwise(whole):
        assert after[: len(before) + REPLY] == [*before, *[7] * REPLY]
    assert len(whole[-1]) + REPLY <= 1024  # GPT-2's context


def test_tokens_are_counted_whether_they_come_alone_or_together() -> None:
    assert tokens_of([TokenChunk((1,)), TokenChunk((2, 3)), object()]) == 3
