"""Stalls of the event loop are counted, and where its tasks wait is found."""

from __future__ import annotations

import asyncio
import time

from serving.gateway.observability.metrics import Metrics
from serving.gateway.server.run_server import count_stalls, running_tasks


def values(metrics: Metrics) -> tuple[float, float]:
    found = dict(
        line.rsplit(" ", 1)
        for line in metrics.exposition().decode().splitlines()
        if line.startswith("triptych_event_loop")
    )
    stalls = float(found["triptych_event_loop_stalls_total"])
    return stalls, float(found["triptych_event_loop_stalled_seconds_total"])


async def test_stalls_are_counted_and_work_that_waits_is_not() -> None:
    metrics = Metrics()
    counting = asyncio.create_task(count_stalls(metrics))
    await asyncio.sleep(0.06)
    before = values(metrics)
    for _ in range(2):
        time.sleep(0.3)
        await asyncio.sleep(0.06)
    stalls, seconds = values(metrics)
    assert stalls - before[0] == 2
    assert 0.45 < seconds - before[1] < 3
    counting.cancel()


async def _inner(event: asyncio.Event) -> None:
    await event.wait()


async def _outer(event: asyncio.Event) -> None:
    await _inner(event)


def test_each_task_is_described_down_to_what_it_waits_for() -> None:
    async def run() -> list[str]:
        event = asyncio.Event()
        tasks = [asyncio.create_task(_outer(event), name=name) for name in ("first", "second")]
        await asyncio.sleep(0)
        found = running_tasks()
        event.set()
        await asyncio.gather(*tasks)
        return found

    first, second = asyncio.run(run())
    assert first.startswith("first: _outer:")
    assert " > _inner:" in first
    assert " > Event.wait:" in first
    assert second.startswith("second: ")
