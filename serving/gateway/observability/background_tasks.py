"""Tasks of a gateway that run beside its requests: no failure of one ends it for good."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable

from serving.processes.supervision import back_off_s

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.5
"""Before a task that has failed is started again; twice as long after each further failure."""
LONGEST_PAUSE_S = 30.0
"""A task that has run for so long begins with the first pause again."""


class BackgroundTasks:
    """Starts tasks, and starts each again that fails. Used on one event loop.

    Args:
        count: Called with the name of a task that has failed.
    """

    def __init__(self, count: Callable[[str], object] = lambda name: None) -> None:
        self._count = count
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: dict[asyncio.Task[None], str] = {}

    @property
    def problem(self) -> str | None:
        """The task that waits to be started again, and its failure; None: all of them run."""
        return next(iter(self._failed.values()), None)

    def start(self, name: str, run: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """A task that runs until `run` returns, or until it is cancelled.

        Args:
            name: For logs and metrics.
            run: Called again after each failure. A `CancelledError` that a library raises, as
                `grpc.aio` does for calls of a channel that is closed, is one, too.
        """
        # A request that happens to start it is not part of it.
        task = asyncio.create_task(self._keep(name, run), name=name, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Cancel all tasks, and wait until they have ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        failures = 0
        while True:
            began_s = loop.time()
            try:
                await run()
                return
            except (Exception, asyncio.CancelledError) as error:
                if task.cancelling():
                    raise asyncio.CancelledError from None
                failures = 1 if loop.time() - began_s > LONGEST_PAUSE_S else failures + 1
                pause_s = back_off_s(failures, FIRST_PAUSE_S, LONGEST_PAUSE_S)
                log.exception("%s failed: it is started again in %g s", name, pause_s)
                self._count(name)
                self._failed[task] = f"{name} failed ({type(error).__name__})"
            try:
                await asyncio.sleep(pause_s)
            finally:
                del self._failed[task]
