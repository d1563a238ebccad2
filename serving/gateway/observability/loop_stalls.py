"""Counts the times at which the event loop stands still: every other request waits meanwhile."""

from __future__ import annotations

import asyncio

from serving.gateway.observability.metrics import Metrics

STALL_S = 0.1
"""A shorter pause is not counted."""
_EVERY_S = 0.025


async def count_stalls(metrics: Metrics) -> None:
    """Measure until cancelled how late a short sleep ends."""
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + _EVERY_S
        await asyncio.sleep(_EVERY_S)
        late_s = loop.time() - due_s
        if late_s > STALL_S:
            metrics.event_loop_stalls.inc()
            metrics.event_loop_stalled_s.inc(late_s)
