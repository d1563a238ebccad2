"""Counters that say whether the engine is alive and how full it is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Metrics:
    """Written by the engine's thread, read by any; each field is one number, so no lock.

    Attributes:
        steps: Turns of the loop that ran the model: the heartbeat.
        step_seconds: Time spent in them.
        admitted: Sequences prefilled.
        row_steps: Tokens decoded over all rows, prefill apart.
        rows_in_use: Live rows now.
        waiting: Accepted sequences without rows now.
        failures: Turns that raised.
    """

    steps: int = 0
    step_seconds: float = 0.0
    admitted: int = 0
    row_steps: int = 0
    rows_in_use: int = 0
    waiting: int = 0
    failures: int = 0
