"""Admission control: limits on concurrent requests and tokens, and turns at Triton.

A request over a limit gets 429 at once. The calls of admitted requests take turns, first come first
served, so that a long paragraph cannot fill Triton's queue, which has no bound. During shutdown
admitted requests may finish; those that do not are aborted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from serving.errors import InvalidRequest, Overloaded, Unavailable
from serving.gateway.auth import KEY, ApiKey
from triptych.task import IMAGES

RETRY_AFTER_S = 1.0
Reserve = Callable[[int], None]
"""Reserves that many pixels in all for a request; raises as `Admission.pixels` says."""


@dataclass
class Usage:
    """What the requests of one key use now."""

    requests: int = 0
    tokens: int = 0
    pixels: int = 0


class Admission:
    """Requests, tokens and turns of one gateway. Used on its event loop only.

    A key's own limits come before those of all: `serving.gateway.auth.KEY` tells whose request the
    current task serves.

    Args:
        max_requests: Admitted at once.
        max_tokens: Input tokens of all admitted calls.
        max_pixels: Pixels of the images of all admitted requests.
        max_sequences: Calls running at Triton at once.
    """

    def __init__(
        self, *, max_requests: int, max_tokens: int, max_pixels: int, max_sequences: int
    ) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._max_pixels = max_pixels
        self._turns = asyncio.Semaphore(max_sequences)
        self._admitted: set[asyncio.Task[Any]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_closed = False
        self._usages: dict[str, Usage] = {}
        """By the key's name; of those that have requests."""
        self.requests = 0
        self.tokens = 0
        self._pixels = 0
        self.waiting = 0
        """Calls waiting for their turn."""

    def check(self) -> None:
        """Refuse a request that could not be admitted now, before its body is parsed.

        Raises:
            Overloaded: too many requests, of this key or in all.
            Unavailable: the gateway has been shut down.
        """
        if self._is_closed:
            raise _closed()
        key = KEY.get()
        if key is not None and key.max_concurrent_requests is not None:
            own = self._usage(key).requests
            if own >= key.max_concurrent_requests:
                raise Overloaded(
                    f"{own} requests with this key are being served, at most "
                    f"{key.max_concurrent_requests} at once: try again",
                    retry_after_s=RETRY_AFTER_S,
                )
        if self.requests >= self._max_requests:
            raise Overloaded(
                f"{self.requests} requests are being served, at most {self._max_requests} at once: "
                "try again",
                retry_after_s=RETRY_AFTER_S,
            )

    @contextmanager
    def request(self) -> Iterator[None]:
        """Admission of a request, which the current task serves.

        Raises:
            Overloaded: too many requests.
            Unavailable: the gateway was shut down meanwhile.
        """
        self.check()
        task = asyncio.current_task()
        assert task is not None, "requests are served by tasks"
        key = KEY.get()
        usage = self._usage(key)
        if key is not None:
            self._usages[key.name] = usage
        usage.requests += 1
        self.requests += 1
        self._admitted.add(task)
        self._idle.clear()
        try:
            yield
        except asyncio.CancelledError:
            if not self._is_closed:
                raise
            task.uncancel()
            raise _closed() from None
        finally:
            self._admitted.discard(task)
            usage.requests -= 1
            if key is not None and not usage.requests:
                self._usages.pop(key.name, None)
            self.requests -= 1
            if not self.requests:
                self._idle.set()

    async def drained(self, timeout_s: float) -> bool:
        """Wait until no request is admitted; False if the time is up before."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def abort_all(self) -> int:
        """End every request with an error; how many there were. Idempotent."""
        self._is_closed = True
        for task in self._admitted:
            task.cancel()
        return len(self._admitted)

    @contextmanager
    def reserved(self, tokens: int) -> Iterator[None]:
        """Reservation of the tokens of a request's calls.

        Raises:
            InvalidRequest: more than the limit.
            Overloaded: more than are free now, for this key or in all.
        """
        key = KEY.get()
        usage = self._usage(key)
        if key is not None and key.max_concurrent_tokens is not None:
            if tokens > key.max_concurrent_tokens:
                raise InvalidRequest(
                    f"the request has {tokens} tokens in all, at most {key.max_concurrent_tokens} "
                    "are taken with this key: send several requests"
                )
            if usage.tokens + tokens > key.max_concurrent_tokens:
                raise Overloaded(
                    f"{usage.tokens} tokens with this key are being served, at most "
                    f"{key.max_concurrent_tokens} at once: try again",
                    retry_after_s=RETRY_AFTER_S,
                )
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
        usage.tokens += tokens
        try:
            yield
        finally:
            self.tokens -= tokens
            usage.tokens -= tokens

    @contextmanager
    def pixels(self) -> Iterator[Reserve]:
        """Reservation of the pixels of the current request, once it has been admitted.

        A request that is prepared again reserves them once.

        Raises:
            InvalidRequest: more than the limit.
            Overloaded: more than are free now, for this key or in all.
        """
        key = KEY.get()
        usage = self._usage(key)
        held = 0

        def reserve(pixels: int) -> None:
            nonlocal held
            more = max(0, pixels - held)
            limit = key.max_concurrent_pixels if key is not None else None
            if limit is not None:
                _check_pixels(pixels, usage.pixels + more, limit, "with this key ")
            _check_pixels(pixels, self._pixels + more, self._max_pixels)
            held += more
            usage.pixels += more
            self._pixels += more

        try:
            yield reserve
        finally:
            usage.pixels -= held
            self._pixels -= held

    def _usage(self, key: ApiKey | None) -> Usage:
        return self._usages.get(key.name, Usage()) if key is not None else Usage()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """One call's turn at Triton; waits for it, first come, first served."""
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


def _check_pixels(pixels: int, total: int, limit: int, whose: str = "") -> None:
    if pixels > limit:
        raise InvalidRequest(
            f"the request's images have {pixels} pixels in all, at most {limit} are taken {whose}"
            "at once: send several requests",
            field=IMAGES,
        )
    if total > limit:
        raise Overloaded(
            f"images of {total - pixels} pixels {whose}are being served, at most {limit} at once: "
            "try again",
            retry_after_s=RETRY_AFTER_S,
        )
