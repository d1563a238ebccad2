"""Decides when a stopping Triton has had enough time: requests may finish, models may not."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from serving.triton.control import ServerStatus

_UNLOAD_S = 3.0
"""Triton unloads within two seconds of its last response, or never: 2.51 loses track of some
requests that were cancelled at the moment they ended, and keeps their models loaded."""
_SENT_S = 0.3
"""Triton sends what it has for its clients within this time after the last model process ended."""
_POLL_S = 0.2
_IDLE_S = 1.2
"""Longer than two heartbeats, so that a request that arrived just before the last one is seen."""
_ALL_STOPPED = "All models are stopped"  # logged by Triton when it counts no request in flight


class ShutdownMonitor:
    """Tracks one server's shutdown.

    `stop_waiting` and `read_log` may be called from any thread or signal handler, the other methods
    from the stopping thread alone.

    Args:
        read_status: The server's status; None if it does not respond. Triton serves its metrics
            until it exits.
        has_stubs: Whether a model process runs.
        sends_spans: Whether Triton sends its last spans when it exits.
    """

    def __init__(
        self,
        read_status: Callable[[], ServerStatus | None],
        has_stubs: Callable[[], bool],
        *,
        sends_spans: bool = False,
    ) -> None:
        self._read_status = read_status
        self._has_stubs = has_stubs
        self._sends_spans = sends_spans
        self._is_cut_short = False
        self._all_stopped_s = math.inf
        self._unloaded_s = math.inf
        self._last_busy_s = 0.0
        self._deadline_s = 0.0

    def begin(self, timeout_s: float) -> None:
        """Start the clock: requests in flight get this much time."""
        self._last_busy_s = time.monotonic()
        self._deadline_s = self._last_busy_s + timeout_s

    def shorten(self, timeout_s: float) -> None:
        """Move the deadline to at most `timeout_s` from now."""
        self._deadline_s = min(self._deadline_s, time.monotonic() + timeout_s)

    def stop_waiting(self) -> None:
        """Treat the deadline as passed."""
        self._is_cut_short = True

    def read_log(self, line: str) -> None:
        """Note the line in which Triton reports that no request is in flight."""
        if _ALL_STOPPED in line:
            self._all_stopped_s = time.monotonic()

    def await_idle(self) -> None:
        """Block until the server has been idle for two heartbeats, or the deadline has passed."""
        while not self._is_late() and self._idle_s() < _IDLE_S:
            time.sleep(_POLL_S)

    def is_over(self) -> bool:
        """Whether the server may be killed.

        Triton counts a generator's request as finished once the backend has accepted it, so the
        engines' own statistics decide. It looks once a second whether its models are unloaded, and
        exits two seconds after its last response: nothing is left to do once their processes ended.
        """
        since_all_stopped_s = time.monotonic() - self._all_stopped_s
        if self._is_late() or (self._idle_s() > _UNLOAD_S and since_all_stopped_s > _UNLOAD_S):
            return True
        if since_all_stopped_s < 0 or self._sends_spans or self._has_stubs():
            return False
        self._unloaded_s = min(self._unloaded_s, time.monotonic())
        return time.monotonic() - self._unloaded_s > _SENT_S

    def _is_late(self) -> bool:
        return self._is_cut_short or time.monotonic() > self._deadline_s

    def _idle_s(self) -> float:
        """Seconds since a request was last seen in flight."""
        status = self._read_status()
        if status is not None and not status.is_idle:
            self._last_busy_s = time.monotonic()
        return time.monotonic() - self._last_busy_s
