"""Counts the runs of a session for its heartbeat, which stops during a run that never ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

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
