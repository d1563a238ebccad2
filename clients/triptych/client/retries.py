"""When a request is retried, and after how long; all clients share it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from triptych.errors import ConnectionFailed, Overloaded, TriptychError, Unavailable

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Retries:
    """How often a request is sent that may succeed later, and how long to wait in between.

    Only broken connections, 429 and 503 are retried. The server's `Retry-After` is respected;
    without one the wait doubles each time, with jitter, so that clients refused together do not
    retry together. A `Retry-After` above `longest_wait_s` ends the retries.
    """

    attempts: int = 3
    first_wait_s: float = 0.25
    longest_wait_s: float = 10.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts is {self.attempts}; at least 1 is needed")

    def wait_s(self, failed: int, error: TriptychError) -> float | None:
        """Seconds until the next attempt; None to give up.

        Args:
            failed: Number of failed attempts so far.
            error: Error of the last one.
        """
        if failed >= self.attempts:
            return None
        if not isinstance(error, ConnectionFailed | Overloaded | Unavailable):
            return None
        requested = None if isinstance(error, ConnectionFailed) else error.retry_after_s
        if requested is not None:
            return requested if requested <= self.longest_wait_s else None
        longest = min(self.first_wait_s * 2 ** (failed - 1), self.longest_wait_s)
        return random.uniform(longest / 2, longest)

    def run(self, attempt: Callable[[], _Result]) -> _Result:
        """The result of `attempt`, called again after errors that may pass.

        Raises:
            TriptychError: The error of the last attempt.
        """
        failed = 0
        while True:
            try:
                return attempt()
            except TriptychError as error:
                failed += 1
                wait_s = self.wait_s(failed, error)
                if wait_s is None:
                    raise
            time.sleep(wait_s)

    async def run_async(self, attempt: Callable[[], Awaitable[_Result]]) -> _Result:
        """See `run`.

        Raises:
            TriptychError: The error of the last attempt.
        """
        failed = 0
        while True:
            try:
                return await attempt()
            except TriptychError as error:
                failed += 1
                wait_s = self.wait_s(failed, error)
                if wait_s is None:
                    raise
            await asyncio.sleep(wait_s)
