"""The heartbeat thread: what a model's process counts, written to Triton's metrics endpoint.

Each write is a blocking round trip to Triton, so neither the decode loop nor the response thread
does it, and it happens twice a second rather than once a token.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Protocol

from serving.heartbeat import BEATS

PERIOD_S = 0.5

log = logging.getLogger(__name__)


class Meter(Protocol):
    """One number of Triton's; `pb_utils.Metric`, of which `set` would hold the GIL."""

    def increment(self, value: float) -> None:
        """Adds to it; a gauge takes negative values too."""
        ...


class Counted(Protocol):
    """Figures by the names of `serving.heartbeat`."""

    @property
    def steps(self) -> int:
        """Pieces of work done."""
        ...


class Beating(Protocol):
    """What is watched: an engine, or a session."""

    @property
    def metrics(self) -> Counted:
        """What it counts; figures that it has not stay 0."""
        ...

    @property
    def is_asleep(self) -> bool:
        """Whether no step is to be expected."""
        ...


class Heartbeat:
    """Writes the numbers of what is watched until closed.

    Args:
        watched: Read from this thread.
        meters: By the names of `serving.heartbeat`, all at 0.
        period_s: Seconds between two writes.
    """

    def __init__(
        self, watched: Beating, meters: Mapping[str, Meter], period_s: float = PERIOD_S
    ) -> None:
        self._watched = watched
        self._meters = meters
        self._period_s = period_s
        self._written = dict.fromkeys(meters, 0.0)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops the thread."""
        self._closing.set()
        self._thread.join()

    def beat(self) -> None:
        """Writes what has changed; the thread's body."""
        metrics = self._watched.metrics
        moved = metrics.steps != self._written["steps"]
        now = {name: float(getattr(metrics, name, 0.0)) for name in self._meters if name != BEATS}
        now[BEATS] = self._written[BEATS] + (1.0 if moved or self._watched.is_asleep else 0.0)
        for name, value in now.items():
            if value != self._written[name]:
                self._meters[name].increment(value - self._written[name])
                self._written[name] = value

    def _run(self) -> None:
        while not self._closing.wait(self._period_s):
            try:
                self.beat()
            except Exception:  # the protocol's edge: a heart that stops over one write is a lie
                log.exception("the heartbeat could not be written")
