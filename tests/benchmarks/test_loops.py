"""Loops without a model, and conversations that grow."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from benchmarks import engine_loop
from benchmarks.engine_loop import SEARCHES, time_steps
from benchmarks.long_contexts import REPLY, TURN, TURNS, tokens_of, turns
from inference.sequences import TokenChunk


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
def test_all_rows_run_in_every_step(search: dict[str, Any]) -> None:
    assert time_steps(3, 5, search) > 0


def test_a_sequence_that_ends_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_loop, "END", 999)
    monkeypatch.setattr(engine_loop, "VOCABULARY", 1000)
    real = engine_loop.Candidates

    def ending(token_ids: Any, log_probs: Any) -> Any:
        return real(token_ids * 0 + 999, log_probs)

    monkeypatch.setattr(engine_loop, "Candidates", ending)
    with pytest.raises(RuntimeError, match="a sequence ended"):
        time_steps(1, 5, {})


def test_table_has_a_row_for_each_search() -> None:
    app = typer.Typer()
    app.command()(engine_loop.main)
    result = CliRunner().invoke(app, ["--steps", "3", "--sequences", "1", "2", "3"])
    assert result.exit_code == 0, result.output
    rows = [line for line in result.output.splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[0].strip("| ") for row in rows[1:]] == list(SEARCHES)
    assert "1 / 2 / 3 sequences" in rows[0]


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
