"""What all HTTP connections of a process share: their limits, and their turns to read large bodies.

The event loop reads about 256 KB of a connection at a time, and copies them: reads of a hundred
large bodies in a row would delay whatever else waits for the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from uvicorn.protocols.http.flow_control import FlowControl

from serving.gateway.observability.metrics import Metrics

FREE_BYTES = 250_000
"""Of each body, read without a pause."""
BYTES_PER_S = 200_000_000
"""Of large bodies together: a read of 256 KB every 1.3 ms."""
_DISCARD_PAUSE_S = 0.02
"""Between two reads of bodies that nothing needs, of all connections: libuv reads up to 32 times
before it turns to another one, so that a hundred fast clients would stop the event loop."""


class ReadingPace:
    """When the next connection may read, over all connections of an event loop."""

    def __init__(self) -> None:
        self._next_s = 0.0

    def reserve(self, size: int, now_s: float) -> float:
        """Take a place behind those that wait.

        Args:
            size: Bytes that were read.
            now_s: Time of the event loop.

        Returns:
            Seconds until the next read.
        """
        self._next_s = max(self._next_s, now_s) + size / BYTES_PER_S
        return self._next_s - now_s


class PacedFlow(FlowControl):
    """uvicorn's flow control of one connection, which reads on in its turn.

    Args:
        pace: Shared by all connections.
    """

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, pace: ReadingPace
    ) -> None:
        super().__init__(transport)
        self._loop = loop
        self._pace = pace
        self._is_waiting = False
        self.paced_bytes = 0
        """What the last read took of a large body."""

    def resume_reading(self) -> None:
        """Read on, after a large body's read when it is this connection's turn."""
        if not self.read_paused or self._is_waiting:
            return
        if not self.paced_bytes:
            super().resume_reading()
            return
        self._is_waiting = True
        wait_s = self._pace.reserve(self.paced_bytes, self._loop.time())
        self.paced_bytes = 0
        self._loop.call_later(wait_s, self._read_on)

    def _read_on(self) -> None:
        self._is_waiting = False
        if not self._transport.is_closing():
            super().resume_reading()


class Connection(Protocol):
    """One of them."""

    def abort(self) -> None:
        """Close it at once."""
        ...


@dataclass
class Connections:
    """All open connections of a gateway's process.

    Args:
        most: At once. A further one replaces the connection that has waited for its client longest.
        read_timeout_s: For a header; between two parts of a body (`MIN_BYTES_PER_S`).
        write_timeout_s: For the client to read what was sent (`MIN_BYTES_PER_S`).
        most_unread_bytes: Of a body whose request has been answered.
        metrics: Closed connections are counted there.
    """

    most: int
    read_timeout_s: float
    write_timeout_s: float
    most_unread_bytes: int
    metrics: Metrics
    waiting: dict[Connection, None] = field(default_factory=dict)
    """Those that wait for their client to send, the longest first."""
    discarding: int = 0
    """Those that pause between two reads of a body that nothing needs."""
    pace: ReadingPace = field(default_factory=ReadingPace)

    def check(self, connections: Iterable[Any], now_s: float) -> None:
        """Close what has stalled; call it every second.

        Args:
            now_s: Time of the event loop.
        """
        for connection in list(connections):
            connection.check(now_s)

    def begin_pause(self) -> float:
        """Count a connection that pauses; for so many seconds."""
        self.discarding += 1
        return _DISCARD_PAUSE_S * self.discarding

    def make_room(self, count: int) -> bool:
        """Close one waiting connection if there are too many; False if none waits.

        Args:
            count: Those that are open.
        """
        if count <= self.most:
            return True
        oldest = next(iter(self.waiting), None)
        if oldest is None:
            return False
        self.metrics.closed_connection("limit")
        oldest.abort()
        self.waiting.pop(oldest, None)
        return True
