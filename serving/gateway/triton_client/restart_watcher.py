"""Ends calls that a dead model process will never answer.

After a model's process is killed, calls that it had accepted hang, while Triton still reports the
model as ready. `triptych triton` unloads the model at once, loads it again and increments the
incarnation in its configuration. If the model is unloaded or its incarnation has changed, the calls
that were running are ended with an error.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from inference.errors import Unavailable
from serving.gateway.observability.background_tasks import BackgroundTasks

log = logging.getLogger(__name__)

T = TypeVar("T")
GONE = "gone"
"""The incarnation of a model that Triton does not serve."""
POLL_S = 0.25
UNWATCHED_S = 0.1
"""Calls that end within this time are not watched; no healing is as fast."""


class RestartWatcher:
    """Watches the models that have running calls. Used on one event loop.

    Args:
        read: A model's current incarnation, GONE if it is not loaded; None if unknown.
        poll_s: Interval for a model with running calls; others are not polled.
        tasks: Runs the polls.
    """

    def __init__(
        self,
        read: Callable[[str], Awaitable[str | None]],
        poll_s: float = POLL_S,
        tasks: BackgroundTasks | None = None,
    ) -> None:
        self._read = read
        self._tasks = tasks or BackgroundTasks()
        self._poll_s = poll_s
        self._latest: dict[str, str] = {}
        self._running: defaultdict[str, dict[asyncio.Task[Any], str | None]] = defaultdict(dict)
        """Tasks, and the incarnation that was the latest known one when they began."""
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self._aborted: set[asyncio.Task[Any]] = set()

    def note(self, model: str, incarnation: str) -> None:
        """Takes a reading: calls that begin from now on are of that incarnation or a later one."""
        self._latest[model] = incarnation

    async def guarded(self, model: str, work: Awaitable[T]) -> T:
        """The work's result; it runs in the current task.

        Raises:
            Unavailable: the model's process was replaced meanwhile.
        """
        task = asyncio.current_task()
        assert task is not None, "calls are made by tasks"
        running = self._running[model]
        running[task] = self._latest.get(model)
        if model not in self._watchers:
            self._watchers[model] = self._tasks.start(
                "watching of restarts", lambda: self._watch(model)
            )
        try:
            return await work
        except asyncio.CancelledError:
            if task not in self._aborted or task.cancelling() > 1:  # by others, too
                raise
            lost = Unavailable(f"{model} was restarted: try again", retry_after_s=1)
            lost.is_loss = True
            raise lost from None
        finally:
            running.pop(task, None)
            if task in self._aborted:
                self._aborted.discard(task)
                task.uncancel()
            if not running and (watcher := self._watchers.pop(model, None)):
                watcher.cancel()

    def end_all(self) -> None:
        """End the calls of all models: their server does not respond."""
        for model in list(self._running):
            self._abort(model)

    async def _watch(self, model: str) -> None:
        await asyncio.sleep(min(UNWATCHED_S, self._poll_s))
        before = await self._read(model)
        while True:
            if before == GONE:
                self._abort(model)
            await asyncio.sleep(self._poll_s)
            now = await self._read(model) or before
            if now != before and before not in (None, GONE):
                log.warning(
                    "model was restarted: its running calls are ended", extra={"model": model}
                )
                self._abort(model, now)
            before = now

    def _abort(self, model: str, now: str | None = None) -> None:
        """Ends the calls of a model, but those that began under this incarnation."""
        running = self._running[model].items()
        lost = {task for task, began in running if now in (None, GONE) or began != now}
        lost -= self._aborted
        self._aborted |= lost
        for task in lost:
            task.cancel()
