"""When to try again, and after how long; pure, so that both clients and all transports share it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from triptych.errors import ConnectionFailed, Overloaded, TriptychError, Unavailable

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Retries:
    """How often a call that may succeed later is sent, and how long to wait in between.

    Only broken connections, 429 and 503 are tried again. The server's `Retry-After` is kept;
    without one the wait doubles each time, with jitter, so that clients refused together do not
    come back together. A server that asks for more than `longest_wait_s` is not waited for.
    """

    attempts: int = 3
    first_wait_s: float = 0.25
    longest_wait_s: float = 10.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts is {self.attempts}; a call is sent once at least")

    def wait_s(self, failed: int, error: TriptychError) -> float | None:
        """Seconds until the next attempt; None to give up.

        Args:
            failed: Attempts so far.
            error: How the last one failed.
        """
        if failed >= self.attempts:
            return None
        if not isinstance(error, ConnectionFailed | Overloaded | Unavailable):
            return None
        asked = None if isinstance(error, ConnectionFailed) else error.retry_after_s
        if asked is not None:
            return asked if asked <= self.longest_wait_s else None
        longest = min(self.first_wait_s * 2 ** (failed - 1), self.longest_wait_s)
        return random.uniform(longest / 2, longest)

    def until_answered(self, attempt: Callable[[], _Answer]) -> _Answer:
        """What `attempt` returns, tried as often as these rules say."""
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
