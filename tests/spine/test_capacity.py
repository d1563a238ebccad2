"""An operator's bounds hold in a served model, and outlive its process."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import httpx
import pytest

from serving.heartbeat import EngineStats
from tests.spine.conftest import MODEL, PATIENCE_S, House, Http, running
from tests.spine.inside import stub_of, vitals
from tests.spine.visits import crowd, paragraph, serves, until

pytestmark = pytest.mark.integration

ROWS = 4
BOUNDS = {"TRIPTYCH_MAX_ROWS": ROWS, "TRIPTYCH_STATE_MEMORY": "64MiB"}


async def served(house: House, client: httpx.AsyncClient) -> list[EngineStats]:
    """The engine's numbers, read again and again while it answers 32 requests."""
    work = await crowd(client, asyncio.Event())
    seen = [vitals(house)]
    async with asyncio.timeout(PATIENCE_S):
        while not all(task.done() for task in work):
            await asyncio.wait(work, timeout=0.1)
            seen.append(await asyncio.to_thread(vitals, house))
    assert {task.result() for task in work} == {"answer"}
    return seen


def check(seen: list[EngineStats]) -> None:
    for vital in seen:
        figures = vital.figures
        assert figures["slots"] == ROWS
        assert figures["state_limit_bytes"] == 64 << 20
        assert figures["rows_in_use"] <= ROWS
        assert figures["state_bytes"] <= 64 << 20
        assert figures["row_steps"] <= ROWS * figures["steps"], "rows that no look has met"
    assert max(vital.figures["rows_in_use"] for vital in seen) == ROWS, "it was never full"


async def test_engine_keeps_within_its_rows_and_answers_everything(
    translator: Path, tmp_path: Path, http: Http
) -> None:
    with running(translator, tmp_path, **BOUNDS) as house:
        client = http(house)
        check(await served(house, client))

        body = {"texts": paragraph(1), "num_beams": ROWS + 1}
        refused = await client.post("/v1/translate", json=body)
        assert refused.status_code == 422
        assert f"{ROWS + 1} beams" in refused.json()["error"]["message"]

        os.kill(stub_of(house.process.pid, MODEL), signal.SIGKILL)
        await until(lambda: serves(client))
        healed = await served(house, client)
        assert healed[-1].incarnation == 1
        check(healed)


def test_bound_below_a_models_own_beams_stops_the_start(translator: Path, tmp_path: Path) -> None:
    starts = running(translator, tmp_path, TRIPTYCH_MAX_ROWS=1)
    with pytest.raises(SystemExit, match="max_rows must not be 1"), starts:
        raise AssertionError("it started")
