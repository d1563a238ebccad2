"""Who may come in: the gateway admits by requests and tokens; Triton's queue has no bound.

A request is refused at once when the house is full; once inside, its calls take turns, first come
first served, so that a long paragraph cannot fill Triton's queue. When the house closes, those
inside may finish, and in the end are sent away.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from serving.errors import InvalidRequest, Overloaded, Unavailable

RETRY_AFTER_S = 1.0


class Admission:
    """Counts of one gateway. Used on its event loop alone.

    Args:
        max_requests: In the house at once.
        max_tokens: Input tokens of all calls in the house.
        max_sequences: Calls at Triton at once.
    """

    def __init__(self, *, max_requests: int, max_tokens: int, max_sequences: int) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._turns = asyncio.Semaphore(max_sequences)
        self._inside: set[asyncio.Task[Any]] = set()
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self._is_closed = False
        self.requests = 0
        self.tokens = 0
        self.waiting = 0
        """Calls that wait for their turn."""

    def check(self) -> None:
        """Refuses whoever could not come in now; cheaper than to read what they bring.

        Raises:
            Overloaded: too many are in the house.
            Unavailable: the house is closed.
        """
        if self._is_closed:
            raise _closed()
        if self.requests >= self._max_requests:
            raise Overloaded(
                f"{self.requests} requests are being served, at most {self._max_requests} at once: "
                "try again",
                retry_after_s=RETRY_AFTER_S,
            )

    @contextmanager
    def request(self) -> Iterator[None]:
        """The request's stay in the house; all that is done for it is done by the current task.

        Raises:
            Overloaded: too many are in it.
            Unavailable: the house was closed meanwhile.
        """
        self.check()
        task = asyncio.current_task()
        assert task is not None, "requests are served by tasks"
        self.requests += 1
        self._inside.add(task)
        self._is_empty.clear()
        try:
            yield
        except asyncio.CancelledError:
            if not self._is_closed:
                raise
            task.uncancel()
            raise _closed() from None
        finally:
            self._inside.discard(task)
            self.requests -= 1
            if not self.requests:
                self._is_empty.set()

    async def emptied(self, timeout_s: float) -> bool:
        """Waits until nobody is in the house; whether that came to pass in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._is_empty.wait()
        except TimeoutError:
            return False
        return True

    def send_away(self) -> None:
        """Ends every request in the house with an error; harmless when repeated."""
        self._is_closed = True
        for task in self._inside:
            task.cancel()

    @contextmanager
    def reserved(self, tokens: int) -> Iterator[None]:
        """Room for the tokens of a request's calls.

        Raises:
            InvalidRequest: more than there will ever be room for.
            Overloaded: more than there is room for now.
        """
        if tokens > self._max_tokens:
            raise InvalidRequest(
                f"the request has {tokens} tokens in all, at most {self._max_tokens} are taken: "
                "send several requests"
            )
        if self.tokens + tokens > self._max_tokens:
            raise Overloaded(
                f"{self.tokens} tokens are being served, at most {self._max_tokens} at once: "
                "try again",
                retry_after_s=RETRY_AFTER_S,
            )
        self.tokens += tokens
        try:
            yield
        finally:
            self.tokens -= tokens

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """One call's turn at Triton; waits for it, first come first served."""
        self.waiting += 1
        try:
            await self._turns.acquire()
        finally:
            self.waiting -= 1
        try:
            yield
        finally:
            self._turns.release()


def _closed() -> Unavailable:
    return Unavailable("the gateway was shut down: try another", retry_after_s=1)
