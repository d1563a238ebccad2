"""What is admitted now, in all and by key: requests, tokens, pixels, bytes, and turns at Triton.

A gateway of one process counts in its own memory (`LocalCounts`), one of several workers in memory
that they share (`serving.gateway.server.shared_counts`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

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

    def requests_elsewhere(self) -> int:
        """None: there are no other processes."""
        return 0

    def load(self, queued: int) -> Load:
        """What is in use; nothing waits elsewhere."""
        return Load(queued=queued, tokens=self._total.tokens)

    def turns(self, limit: int) -> Turns:
        """A semaphore."""
        return asyncio.Semaphore(limit)
