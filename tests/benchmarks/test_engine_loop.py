"""The loop without a model runs every search to the last timed step."""

from __future__ import annotations

from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from benchmarks import engine_loop
from benchmarks.engine_loop import SEARCHES, time_steps


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
