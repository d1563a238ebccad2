"""An operator's bounds hold in a served model, and outlive its process."""

from __future__ import annotations

import asyncio
import os
import signal
from itertools import pairwise, starmap
from pathlib import Path

import httpx
import pytest

from serving.liveness.engine_stats import EngineStats
from tests.e2e.conftest import MODEL, TIMEOUT_S, Http, Stack, running
from tests.e2e.introspection import engine_stats, stub_of
from tests.e2e.workload import concurrent_load, paragraph, serves, until

pytestmark = pytest.mark.integration

ROWS = 4
BOUNDS = {"TRIPTYCH_MAX_ROWS": ROWS, "TRIPTYCH_STATE_MEMORY": "64MiB"}


async def served(stack: Stack, client: httpx.AsyncClient) -> list[EngineStats]:
    """The engine's numbers, read again and again while it answers 32 requests."""
    work = await concurrent_load(client, asyncio.Event())
    seen = [engine_stats(stack)]
    async with asyncio.timeout(TIMEOUT_S):
        while not all(task.done() for task in work):
            await asyncio.wait(work, timeout=0.1)
            seen.append(await asyncio.to_thread(engine_stats, stack))
    assert {task.result() for task in work} == {"answer"}
    return seen


def check(seen: list[EngineStats]) -> None:
    for stats in seen:
        figures = stats.figures
        assert figures["slots"] == ROWS
        assert figures["state_limit_bytes"] == 64 << 20
        assert figures["rows_in_use"] <= ROWS
        assert figures["state_bytes"] <= 64 << 20
        assert figures["row_steps"] <= ROWS * figures["steps"], "rows that no look has met"
    assert any(starmap(was_full, pairwise(seen))), "it was never full"


def was_full(earlier: EngineStats, later: EngineStats) -> bool:
    """Whether a look met all rows, or a step between two looks had them."""
    steps, rows = (later.figures[name] - earlier.figures[name] for name in ("steps", "row_steps"))
    return later.figures["rows_in_use"] == ROWS or rows > (ROWS - 1) * steps


async def test_engine_keeps_within_its_rows_and_answers_everything(
    translator: Path, tmp_path: Path, http: Http
) -> None:
    with running(translator, tmp_path, **BOUNDS) as stack:
        client = http(stack)
        check(await served(stack, client))

        body = {"texts": paragraph(1), "num_beams": ROWS + 1}
        refused = await client.post("/v1/translate", json=body)
        assert refused.status_code == 422
        assert f"{ROWS + 1} beams" in refused.json()["error"]["message"]

        os.kill(stub_of(stack.process.pid, MODEL), signal.SIGKILL)
        await until(lambda: serves(client))
        restarted = await served(stack, client)
        assert restarted[-1].incarnation == 1
        check(restarted)


def test_bound_below_a_models_own_beams_stops_the_start(translator: Path, tmp_path: Path) -> None:
    starts = running(translator, tmp_path, TRIPTYCH_MAX_ROWS=1)
    with pytest.raises(SystemExit, match="4 rows per request by default, max_rows is 1"), starts:
        raise AssertionError("it started")
