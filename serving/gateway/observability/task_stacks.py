"""Where the tasks of an event loop wait, for a log line about one that does not end."""

from __future__ import annotations

import asyncio
from types import FrameType
from typing import Any


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
