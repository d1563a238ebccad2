"""What is admitted now, in all and by key: requests, tokens, pixels, bytes, and turns at Triton.

A gateway of one process counts in its own memory (`LocalCounts`), one of several workers in memory
that they share (`serving.gateway.server.shared_counts`), several gateways in a store
(`serving.gateway.admission.redis_counts`). `FairTurns` divides
turns between API keys, so that one key cannot hold up the others.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from serving.gateway.admission.auth import key_name
from serving.gateway.observability.metrics import Load


@dataclass
class Usage:
    """What is in use now."""

    requests: int = 0
    tokens: int = 0
    pixels: int = 0
    bytes: int = 0

    def add(self, other: Usage) -> None:
        """Add another's numbers."""
        self.requests += other.requests
        self.tokens += other.tokens
        self.pixels += other.pixels
        self.bytes += other.bytes


class Turns(Protocol):
    """A bounded number of turns, given first come, first served."""

    async def acquire(self) -> object:
        """Wait for a turn."""
        ...

    def release(self) -> None:
        """Give the turn back."""
        ...


class Counts(Protocol):
    """Counts of the whole gateway. Used on one event loop of each process.

    To respect a limit, count first, then compare the total, and take the own share back if it is
    too much: of two processes that count at the same moment at least one sees the other.
    """

    def add(self, key: str | None, usage: Usage) -> None:
        """Count, or take back with negative numbers.

        Args:
            key: Name of the API key whose share this is, if there is one.
        """
        ...

    def total(self) -> Usage:
        """All that is in use."""
        ...

    def of_key(self, name: str) -> Usage:
        """What the requests of one key use."""
        ...

    async def of_key_everywhere(self, name: str) -> Usage:
        """The same, with what they use at other gateways if these share a store."""
        ...

    def requests_elsewhere(self) -> int:
        """Requests of the gateway's other processes."""
        ...

    def load(self, queued: int) -> Load:
        """What is in use, for `/metrics`.

        Args:
            queued: Calls of this process that wait to be sent to Triton.
        """
        ...

    def turns(self, limit: int) -> Turns:
        """The gateway's turns at Triton."""
        ...


class LocalCounts:
    """The counts of a gateway that is one process."""

    def __init__(self) -> None:
        self._total = Usage()
        self._keys: dict[str, Usage] = {}
        """By name; of those that have requests."""

    def add(self, key: str | None, usage: Usage) -> None:
        """Count, or take back."""
        self._total.add(usage)
        if key is None:
            return
        own = self._keys.setdefault(key, Usage())
        own.add(usage)
        if own == Usage():
            del self._keys[key]

    def total(self) -> Usage:
        """All that is in use."""
        return self._total

    def of_key(self, name: str) -> Usage:
        """What the requests of one key use."""
        return self._keys.get(name, Usage())

    async def of_key_everywhere(self, name: str) -> Usage:
        """The same: there are no other gateways."""
        return self.of_key(name)

    def requests_elsewhere(self) -> int:
        """None: there are no other processes."""
        return 0

    def load(self, queued: int) -> Load:
        """What is in use; nothing waits elsewhere."""
        return Load(queued=queued, tokens=self._total.tokens)

    def turns(self, limit: int) -> Turns:
        """A semaphore."""
        return asyncio.Semaphore(limit)


@dataclass(eq=False)
class _Caller:
    key: str
    ready: asyncio.Future[None]


class FairTurns:
    """A bounded number of turns. Used on one event loop.

    A free turn goes to the key that has the fewest, and within a key first come, first served.
    Callers without a key get turns in their order. With several workers, each divides the turns
    that it gets.

    Args:
        turns: What is divided.
    """

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._held: Counter[str] = Counter()
        self._waiting: list[_Caller] = []
        self._giving: asyncio.Task[None] | None = None
        self.waiting = 0
        """Callers without a turn."""

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """A turn of the key of the current task's request."""
        key = key_name()
        self.waiting += 1
        try:
            await self.acquire(key)
        finally:
            self.waiting -= 1
        try:
            yield
        finally:
            self.release(key)

    async def acquire(self, key: str | None) -> None:
        """Wait for a turn.

        Args:
            key: Name of the caller's key, if there is one.
        """
        if key is None:
            await self._turns.acquire()
            return
        caller = _Caller(key, asyncio.get_running_loop().create_future())
        self._waiting.append(caller)
        if self._giving is None:
            self._giving = asyncio.create_task(self._give(), context=contextvars.Context())
        try:
            await caller.ready
        except asyncio.CancelledError:
            if caller in self._waiting:
                self._waiting.remove(caller)
            else:  # it had just been given
                self.release(key)
            raise

    def release(self, key: str | None) -> None:
        """Give a turn back; `key` as for `acquire`."""
        if key is not None:
            self._held[key] -= 1
            if not self._held[key]:
                del self._held[key]
        self._turns.release()

    async def _give(self) -> None:
        """Take free turns for the callers that wait, until there are none."""
        try:
            while self._waiting:
                await self._turns.acquire()
                able = [caller for caller in self._waiting if not caller.ready.done()]
                if not able:
                    self._turns.release()
                    await asyncio.sleep(0)  # cancelled callers leave
                    continue
                caller = min(able, key=lambda each: self._held[each.key])
                self._waiting.remove(caller)
                self._held[caller.key] += 1
                caller.ready.set_result(None)
        finally:
            self._giving = None
