"""Reads large bodies one after another, so that a hundred of them leave time for other requests.

The event loop reads about 256 KB of a connection at a time, and copies them: reads of all
connections in a row would delay whatever else waits for the loop.

Decision D87.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.flow_control import FlowControl

FREE_BYTES = 250_000
"""Of each body, read without a pause."""
BYTES_PER_S = 200_000_000
"""Of large bodies together: a read of 256 KB every 1.3 ms."""


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
