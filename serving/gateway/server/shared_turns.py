"""Turns at Triton that all workers share.

Within a worker they are given first come, first served. A worker passes a turn on to its own next
caller unless a caller of another worker has waited for longer: then it frees the turn, and the
other worker, which looks for free turns every few milliseconds while it has callers that wait,
takes it. There is no message between workers, so none can be lost with a worker that is killed.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from dataclasses import dataclass, field

from serving.gateway.server.shared_memory import Field, Segment

POLL_S = 0.002
"""Between two looks for a free turn, while callers wait. A sequence has its turn for longer."""
PATIENCE_S = 0.05
"""So long a free turn is left to a worker whose caller has waited for longer; it may hang."""


@dataclass(eq=False)
class _Caller:
    ready: asyncio.Future[None]
    since_ns: int = field(default_factory=time.monotonic_ns)


class SharedTurns:
    """The turns of one worker. Used on its event loop.

    Args:
        segment: Shared by all workers.
        number: Of this worker, from 0.
        limit: Turns in all.
    """

    def __init__(self, segment: Segment, number: int, limit: int) -> None:
        self._words = segment.words
        self._turns = segment.places(Field.TURNS)
        self._own = self._turns[number]
        self._oldest = segment.places(Field.OLDEST_NS)
        self._own_oldest = self._oldest[number]
        self._limit = limit
        self._barrier = threading.Lock()
        self._waiting: deque[_Caller] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._passed_over_ns: int | None = None
        """Since when a free turn has been left to another worker."""

    async def acquire(self) -> None:
        """Wait for a turn."""
        caller = _Caller(asyncio.get_running_loop().create_future())
        self._waiting.append(caller)
        self._give()
        try:
            await caller.ready
        except asyncio.CancelledError:
            if caller.ready.done() and not caller.ready.cancelled():
                self.release()  # it had just been given
            else:
                self._waiting.remove(caller)
                self._publish()
            raise

    def release(self) -> None:
        """Give a turn back."""
        self._words[self._own] -= 1
        self._give()

    def _give(self) -> None:
        """Give free turns to the callers of this worker whose turn it is; look again soon."""
        self._publish()
        while self._waiting and self._may_take() and self._take():
            caller = self._waiting.popleft()
            self._publish()
            caller.ready.set_result(None)
        if self._waiting and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(POLL_S, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        self._give()

    def _take(self) -> bool:
        """Take a turn, if one is free; counted first, then compared (`Counts`)."""
        self._words[self._own] += 1
        with self._barrier:
            pass
        if sum([self._words[place] for place in self._turns]) <= self._limit:
            return True
        self._words[self._own] -= 1
        return False

    def _may_take(self) -> bool:
        """Whether no caller of another worker has waited for longer, or its worker hangs."""
        if sum([self._words[place] for place in self._turns]) >= self._limit:
            self._passed_over_ns = None
            return False
        own_ns = self._waiting[0].since_ns
        if not any(0 < self._words[place] < own_ns for place in self._oldest):
            self._passed_over_ns = None
            return True
        now_ns = time.monotonic_ns()
        self._passed_over_ns = self._passed_over_ns or now_ns
        return now_ns - self._passed_over_ns > PATIENCE_S * 1e9

    def _publish(self) -> None:
        self._words[self._own_oldest] = self._waiting[0].since_ns if self._waiting else 0
