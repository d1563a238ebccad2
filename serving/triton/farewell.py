"""When a server that is being stopped has had time enough: requests finish, models may not."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from serving.triton.control import Condition

_UNLOAD_S = 3.0
"""Triton unloads within a second or two of its last answer, or for ever: 2.51 forgets some requests
whose clients left in the moment of their end, and keeps their models loaded."""
_LOOK_S = 0.2
_QUIET_S = 1.2
"""Longer than two heartbeats: what came in just before the last one is seen."""
_EMPTY = "All models are stopped"  # what Triton logs when it believes that all are answered


class Farewell:
    """One server's stop. `hurry` and `read` may be called from elsewhere, all else by who stops.

    Args:
        look: How the server does; None where it does not answer. Triton tells until it ends.
    """

    def __init__(self, look: Callable[[], Condition | None]) -> None:
        self._look = look
        self._is_hurried = False
        self._emptied_s = math.inf
        self._busy_s = 0.0
        self._deadline_s = 0.0

    def begin(self, timeout_s: float) -> None:
        """Set the time for requests in flight."""
        self._busy_s = time.monotonic()
        self._deadline_s = self._busy_s + timeout_s

    def shorten(self, timeout_s: float) -> None:
        """Leave no more than so much from now."""
        self._deadline_s = min(self._deadline_s, time.monotonic() + timeout_s)

    def hurry(self) -> None:
        """Wait for nobody any more; may be called by a signal's handler."""
        self._is_hurried = True

    def read(self, line: str) -> None:
        """Take note of a line that Triton logs."""
        if _EMPTY in line:
            self._emptied_s = time.monotonic()

    def await_idle(self) -> None:
        """Wait until nobody has waited for an answer for a while."""
        while not self._is_late() and self._idle_s() < _QUIET_S:
            time.sleep(_LOOK_S)

    def is_over(self) -> bool:
        """Whether the server has had time enough.

        Triton counts a generator's requests as answered once the backend has taken them, so the
        engines' own numbers decide.
        """
        since_emptied_s = time.monotonic() - self._emptied_s
        return self._is_late() or (self._idle_s() > _UNLOAD_S and since_emptied_s > _UNLOAD_S)

    def _is_late(self) -> bool:
        return self._is_hurried or time.monotonic() > self._deadline_s

    def _idle_s(self) -> float:
        """Seconds since somebody was seen to wait for an answer."""
        condition = self._look()
        if condition is not None and not condition.is_idle:
            self._busy_s = time.monotonic()
        return time.monotonic() - self._busy_s
