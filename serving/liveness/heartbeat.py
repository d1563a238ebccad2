"""A model process's figures, written to Triton's metrics while it makes progress.

Each process of a model writes its figures to Triton's metrics endpoint, labelled with its pid;
`triptych triton` and the gateway read them there. `beats` counts the moments at which the process
was idle or had made progress since the moment before. It stops when the process hangs, is stopped
or is gone, and goes on under any load.

Each write is a blocking round trip to Triton, so neither the decode loop nor the response thread
makes it, and it happens twice a second rather than once per token.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from inference.engine.engine import Engine

PREFIX = "triptych_engine_"
BEATS = "beats"
COUNTERS = {
    BEATS: "Moments at which the process was idle or had made progress.",
    "steps": "Decode steps, or runs of a stateless model's session.",
    "step_seconds": "Seconds spent in them.",
    "admitted": "Sequences whose prompt was prefilled.",
    "row_steps": "Tokens decoded over all rows.",
    "draft_tokens": "Tokens that prompt lookup proposed and a step verified.",
    "accepted_tokens": "Proposed tokens that were right.",
    "prefill_tokens": "Source, image and prompt tokens prefilled, padding included.",
    "prefix_hits": "Prompts that began with a cached prefix.",
    "prefix_tokens": "Prompt tokens taken from the prefix cache.",
    "put_back": "Sequences that ran out of memory and were prefilled again.",
    "failures": "Batches and prompts that failed with an exception.",
}
GAUGES = {
    "slots": "Limit of live rows.",
    "rows_in_use": "Live rows: sequences x beams, or requests of the current run.",
    "waiting": "Accepted sequences without rows.",
    "state_bytes": "Bytes of all caches and states.",
    "state_limit_bytes": "Limit of these bytes.",
    "spare_bytes": "Bytes of free arenas kept for reuse; 0 after some idle seconds.",
    "bytes_per_slot": "Bytes per live row on average; 0 when idle.",
    "prefix_bytes": "Bytes of the prefix cache.",
}
"""Both by their names in `inference.engine.engine.Metrics`, except `beats`."""


def labels(model: str, version: str, incarnation: str, pid: int) -> dict[str, str]:
    """Labels of one process's series.

    They are unique among the living: Triton lets two equal series share one metric, frees it with
    the first of them, and crashes when the second writes. The series of a process that was killed
    stay until the server ends.
    """
    return {"model": model, "version": version, "incarnation": incarnation, "process": str(pid)}


REPORTED = ("beats", "steps", "step_seconds", "rows_in_use", "failures")
"""The figures of `serving.liveness.heartbeat` that a session has."""


@dataclass
class SessionFigures:
    """Written by the thread that runs the session, read by the heartbeat's.

    Attributes:
        steps: Runs that have ended, with a result or an error.
        step_seconds: Seconds spent in them.
        rows_in_use: Requests of the current run.
        failures: Requests answered with an error of ONNX Runtime.
    """

    steps: int = 0
    step_seconds: float = 0.0
    rows_in_use: int = 0
    failures: int = 0


class SessionStats:
    """The figures of one session, which runs one batch at a time."""

    def __init__(self) -> None:
        self.metrics = SessionFigures()
        self.is_asleep = True

    @contextmanager
    def run(self, requests: int) -> Iterator[None]:
        """Counts one run, for this number of requests."""
        started_s = time.monotonic()
        self.is_asleep, self.metrics.rows_in_use = False, requests
        try:
            yield
        finally:
            self.is_asleep, self.metrics.rows_in_use = True, 0
            self.metrics.step_seconds += time.monotonic() - started_s
            self.metrics.steps += 1


PERIOD_S = 0.5

log = logging.getLogger(__name__)


class Metric(Protocol):
    """A `pb_utils.Metric`; its `set` holds the GIL during the round trip, `increment` does not."""

    def increment(self, value: float) -> None:
        """Adds to the value; negative numbers are for gauges only."""
        ...


class Heartbeat:
    """Writes the figures of an engine or a session until closed.

    Args:
        monitored: Read from the heartbeat's own thread; figures that it does not have stay 0.
        metrics: By the names of `serving.liveness.heartbeat`, all at 0.
        period_s: Seconds between two writes.
    """

    def __init__(
        self,
        monitored: Engine | SessionStats,
        metrics: Mapping[str, Metric],
        period_s: float = PERIOD_S,
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
