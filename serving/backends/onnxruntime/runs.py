"""What a session has done, for its heartbeat: a run that never ends stops it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

COUNTED = ("beats", "steps", "step_seconds", "rows_in_use")


@dataclass
class Work:
    """Written by the thread that runs the session, read by any.

    Attributes:
        steps: Runs that have ended, with an answer or an error.
        step_seconds: Time spent in them.
        rows_in_use: Requests of the run that is going on.
    """

    steps: int = 0
    step_seconds: float = 0.0
    rows_in_use: int = 0


class Runs:
    """Runs of one session, one at a time."""

    def __init__(self) -> None:
        self.metrics = Work()
        self.is_asleep = True

    @contextmanager
    def one(self, requests: int) -> Iterator[None]:
        """A run for so many requests; within it the heart beats no more."""
        started_s = time.monotonic()
        self.is_asleep, self.metrics.rows_in_use = False, requests
        try:
            yield
        finally:
            self.is_asleep, self.metrics.rows_in_use = True, 0
            self.metrics.step_seconds += time.monotonic() - started_s
            self.metrics.steps += 1
