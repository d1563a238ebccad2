"""What shows how an event loop fares: how long it stands still, and where its tasks wait."""

from __future__ import annotations

import asyncio
from types import FrameType
from typing import Any

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


def running_tasks() -> list[str]:
    """One line for each task but the current one: its functions, outermost first."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    return sorted(f"{task.get_name()}: {' > '.join(_places(task.get_coro()))}" for task in tasks)


def _places(awaited: Any) -> list[str]:
    places = []
    while (frame := _frame(awaited)) is not None:
        places.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
        awaited = next(
            (getattr(awaited, name) for name in _AWAITED if hasattr(awaited, name)), None
        )
    return places or [repr(awaited)]


def _frame(awaited: Any) -> FrameType | None:
    found = (getattr(awaited, name, None) for name in _FRAMES)
    return next((frame for frame in found if frame is not None), None)


_FRAMES = ("cr_frame", "ag_frame", "gi_frame")
_AWAITED = ("cr_await", "ag_await", "gi_yieldfrom")
