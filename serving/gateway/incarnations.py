"""Ends calls that a dead process of Triton will never answer.

After a model's process is killed, calls that it had accepted hang, while Triton goes on calling the
model ready. `triptych triton` takes the model out of service at once, then loads it again and
counts that in its configuration. When the model is gone, or the count has changed, whatever ran
until then is given up.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from serving.errors import Unavailable

log = logging.getLogger(__name__)

T = TypeVar("T")
GONE = "gone"
"""The incarnation of a model that Triton does not serve."""
POLL_S = 0.25
UNWATCHED_S = 0.1
"""Calls that are done within this time cost no look; no healing is as fast."""


class Incarnations:
    """Watches the models that have calls running. Used on one event loop.

    Args:
        read: A model's incarnation as Triton has it now, GONE where it is not loaded; None when
            nobody says.
        poll_s: Seconds between two looks at a busy model; idle ones are not asked about.
    """

    def __init__(
        self, read: Callable[[str], Awaitable[str | None]], poll_s: float = POLL_S
    ) -> None:
        self._read = read
        self._poll_s = poll_s
        self._running: defaultdict[str, set[asyncio.Task[Any]]] = defaultdict(set)
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self._given_up: set[asyncio.Task[Any]] = set()

    async def guarded(self, model: str, work: Coroutine[Any, Any, T]) -> T:
        """The work's result.

        Raises:
            Unavailable: the model's process was replaced meanwhile.
        """
        task = asyncio.create_task(work)
        running = self._running[model]
        running.add(task)
        if model not in self._watchers:
            self._watchers[model] = asyncio.create_task(self._watch(model))
        try:
            return await task
        except asyncio.CancelledError:
            if task not in self._given_up:
                raise
            raise Unavailable(f"{model} was restarted: try again", retry_after_s=1) from None
        finally:
            self._given_up.discard(task)
            running.discard(task)
            if not running and (watcher := self._watchers.pop(model, None)):
                watcher.cancel()

    async def _watch(self, model: str) -> None:
        await asyncio.sleep(min(UNWATCHED_S, self._poll_s))
        before = await self._read(model)
        while True:
            if before == GONE:
                self._give_up(model)
            await asyncio.sleep(self._poll_s)
            now = await self._read(model) or before
            if now != before and before not in (None, GONE):
                log.warning("model lost its process", extra={"model": model})
                self._give_up(model)
            before = now

    def _give_up(self, model: str) -> None:
        lost = self._running[model] - self._given_up
        self._given_up |= lost
        for task in lost:
            task.cancel()
