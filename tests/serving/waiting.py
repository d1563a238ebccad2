"""Waiting for what happens on the event loop or in a thread beside it, and time that tests set."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(is_so: Callable[[], object], seconds: float = 20) -> None:
    """Wait for a condition.

    Raises:
        TimeoutError: it does not come true.
    """
    async with asyncio.timeout(seconds):
        while not is_so():
            await asyncio.sleep(0.001)


async def settled() -> None:
    """Let tasks that can go on do so, until they wait."""
    for _ in range(10):
        await asyncio.sleep(0)


class Clock:
    """Monotonic seconds; may stand for a module's `time`."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    monotonic = __call__

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
