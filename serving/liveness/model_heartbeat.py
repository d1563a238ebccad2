"""The heartbeat thread: writes a model process's figures to Triton's metrics endpoint.

Each write is a blocking round trip to Triton, so neither the decode loop nor the response thread
makes it, and it happens twice a second rather than once per token.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Protocol

from serving.liveness.heartbeat import BEATS

PERIOD_S = 0.5

log = logging.getLogger(__name__)


class Metric(Protocol):
    """A `pb_utils.Metric`; its `set` holds the GIL during the round trip, `increment` does not."""

    def increment(self, value: float) -> None:
        """Adds to the value; negative numbers are for gauges only."""
        ...


class Figures(Protocol):
    """Numbers by the names of `serving.liveness.heartbeat`; those that are missing stay 0."""

    @property
    def steps(self) -> int:
        """Units of work done."""
        ...


class Monitored(Protocol):
    """An engine or a session, as the heartbeat reads it."""

    @property
    def metrics(self) -> Figures:
        """Its current figures."""
        ...

    @property
    def is_asleep(self) -> bool:
        """Whether it has no work, so that no step is due."""
        ...


class Heartbeat:
    """Writes the figures of an engine or a session until closed.

    Args:
        monitored: Read from the heartbeat's own thread.
        metrics: By the names of `serving.liveness.heartbeat`, all at 0.
        period_s: Seconds between two writes.
    """

    def __init__(
        self, monitored: Monitored, metrics: Mapping[str, Metric], period_s: float = PERIOD_S
    ) -> None:
        self._monitored = monitored
        self._metrics = metrics
        self._period_s = period_s
        self._written = dict.fromkeys(metrics, 0.0)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops the thread."""
        self._closing.set()
        self._thread.join()

    def beat(self) -> None:
        """Writes the figures that have changed; called by the heartbeat's thread."""
        figures = self._monitored.metrics
        has_progress = figures.steps != self._written["steps"]
        now = {name: float(getattr(figures, name, 0.0)) for name in self._metrics if name != BEATS}
        is_well = has_progress or self._monitored.is_asleep
        now[BEATS] = self._written[BEATS] + (1.0 if is_well else 0.0)
        for name, value in now.items():
            if value != self._written[name]:
                self._metrics[name].increment(value - self._written[name])
                self._written[name] = value

    def _run(self) -> None:
        """Writes at once, so that limits are visible from the start, then once per period."""
        while True:
            try:
                self.beat()
            except Exception:  # one failed write must not stop the heartbeat of a healthy process
                log.exception("the heartbeat could not be written")
            if self._closing.wait(self._period_s):
                return
