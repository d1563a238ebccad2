"""Stalls of the event loop are counted."""

import asyncio
import time

from serving.gateway.observability.loop_stalls import count_stalls
from serving.gateway.observability.metrics import Metrics


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
    assert 0.5 < seconds - before[1] < 3
    counting.cancel()
