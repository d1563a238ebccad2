"""Threads for texts: large ones have threads of their own, and work ends with its request."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

from inference.process_limits import usable_cores
from inference.processing.cancellation import ABANDONED

T = TypeVar("T")

LARGE = 65_536
"""Characters, bytes or numbers: work above this size does not delay work below it."""
GRACE_S = 1.0
"""For work whose request has ended, until what it holds is free; it looks every few milliseconds
whether it may go on, except within a library."""


class TaskThreads:
    """Threads in two groups, for large and for other work. Lives on one event loop."""

    def __init__(self) -> None:
        count = usable_cores()
        self._small = ThreadPoolExecutor(count, thread_name_prefix="tasks")
        self._large = ThreadPoolExecutor(count, thread_name_prefix="large-tasks")

    async def run(self, size: int | None, work: Callable[..., T], *arguments: object) -> T:
        """The work's result. Where the caller is cancelled, this returns when the work has ended.

        Args:
            size: Of the work; None: small, but not small enough for the event loop.
        """
        threads = self._large if (size or 0) > LARGE else self._small
        abandoned, context = threading.Event(), copy_context()
        context.run(ABANDONED.set, abandoned)
        job = threads.submit(context.run, work, *arguments)
        result = asyncio.wrap_future(job)
        try:
            return await asyncio.shield(result)
        except asyncio.CancelledError:
            abandoned.set()
            result.add_done_callback(_read)  # first: the wait may be cancelled, too
            if not job.cancel():
                await asyncio.wait([result], timeout=GRACE_S)
            raise

    def close(self) -> None:
        """Release the threads."""
        for threads in (self._small, self._large):
            threads.shutdown(wait=False, cancel_futures=True)


def _read(result: asyncio.Future[Any]) -> None:
    """Nothing else reads the exception of abandoned work."""
    if not result.cancelled():
        result.exception()
