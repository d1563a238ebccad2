"""A pool of processes on an event loop: fair turns, and an end at the deadline."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from inference.errors import InvalidRequest, PayloadTooLarge
from serving.process_pool.process import ProcessEnded, Slot, WorkLimits

log = logging.getLogger(__name__)

T = TypeVar("T")

SHORT_S = 0.1
"""Work that is expected to take less may use every process; one is never given to longer work."""
GRACE_S = 0.25
"""For work whose caller has left, before its process is killed: starting another takes as long."""


@dataclass(eq=False)
class _Turn:
    """Work that waits or runs.

    Attributes:
        key: Whose it is.
        is_long: Whether it is expected to take `SHORT_S`.
        due_s: When it would have ended if it had begun on arrival: short work overtakes long work,
            but none for ever.
        slot: Done when it may begin.
    """

    key: str | None
    is_long: bool
    due_s: float
    slot: asyncio.Future[Slot] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class ProcessPool:
    """Processes for work that cannot be cancelled. Lives on one event loop.

    Args:
        size: Number of processes; at least two, so that short work need not wait for long work.
        limits: Of one piece of work.
    """

    def __init__(self, size: int, limits: WorkLimits) -> None:
        self._limits = limits
        self._slots = [Slot(limits) for _ in range(size)]
        self._free = list(self._slots)
        self._waiting: list[_Turn] = []
        self._running: set[_Turn] = set()
        self._ending: set[asyncio.Future[Any]] = set()
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="processes")

    @property
    def pids(self) -> list[int]:
        """Process ids of the processes that have been started."""
        return [slot.pid for slot in self._slots if slot.pid is not None]

    def start(self) -> None:
        """Start the processes in the background; otherwise each starts with its first work."""
        for slot in self._slots:
            self._threads.submit(slot.start)

    async def run(
        self,
        function: Callable[..., T],
        *arguments: object,
        expected_s: float,
        key: str | None = None,
    ) -> T:
        """A function's result. Where the caller is cancelled, this returns when the work has ended.

        Args:
            function: Of a module; it, its arguments and its result are pickled.
            arguments: Its arguments.
            expected_s: Seconds that it will take, about.
            key: Whose work it is: keys have equal turns.

        Raises:
            PayloadTooLarge: it takes more than a piece of work may.
            InvalidRequest: it ended its process.
            Exception: the function's own.
        """
        turn = _Turn(key, expected_s >= SHORT_S, time.monotonic() + expected_s)
        slot = await self._acquire(turn)
        loop = asyncio.get_running_loop()
        work: asyncio.Future[T] = loop.run_in_executor(self._threads, slot.run, function, arguments)
        work.add_done_callback(lambda _: self._release(turn, slot))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await self._end(work, slot)
            raise
        except MemoryError:
            raise PayloadTooLarge(
                f"reading it takes more than {self._limits.memory_bytes} bytes of memory: "
                "send something smaller"
            ) from None
        except ProcessEnded as ended:
            if ended.took_too_long:
                raise PayloadTooLarge(
                    f"reading it takes more than {self._limits.processor_s} s of processor time: "
                    "send something smaller"
                ) from None
            log.error("a process ended: %s", ended, extra={"work": function.__qualname__})
            raise InvalidRequest("reading it ended a process: it may be damaged") from None

    def close(self) -> None:
        """End all processes; work that runs fails."""
        for slot in self._slots:
            slot.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _acquire(self, turn: _Turn) -> Slot:
        self._waiting.append(turn)
        self._grant()
        try:
            return await turn.slot
        except asyncio.CancelledError:
            if turn in self._waiting:
                self._waiting.remove(turn)
            else:
                self._release(turn, turn.slot.result())
            raise

    def _release(self, turn: _Turn, slot: Slot) -> None:
        self._running.discard(turn)
        self._free.append(slot)
        self._grant()

    def _grant(self) -> None:
        """Give the free processes to those that wait."""
        while self._free and (turn := self._next()) is not None:
            self._waiting.remove(turn)
            self._running.add(turn)
            turn.slot.set_result(self._free.pop())

    def _next(self) -> _Turn | None:
        """The next turn: of the key with the least work running, then the earliest due."""
        keys = Counter(turn.key for turn in self._running)
        is_full = sum(turn.is_long for turn in self._running) >= max(1, len(self._slots) - 1)
        able = (turn for turn in self._waiting if not (turn.is_long and is_full))
        return min(able, key=lambda turn: (keys[turn.key], turn.due_s), default=None)

    async def _end(self, work: asyncio.Future[Any], slot: Slot) -> None:
        """Wait for work that nothing waits for; its process is killed if it goes on."""

        async def end() -> None:
            await asyncio.wait([work], timeout=GRACE_S)
            if not work.done():
                slot.kill()
                await asyncio.wait([work])
            work.exception()  # nothing else reads it

        ending = asyncio.ensure_future(end())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        await asyncio.shield(ending)
