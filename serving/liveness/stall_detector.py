"""Stall detection over the engines' published statistics (`serving.liveness.heartbeat`).

The supervisor restarts stalled models, the gateway reports them as not ready.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from serving.liveness.engine_stats import EngineStats


class StallDetector:
    """Measures how long each process's heartbeat has not moved, by comparing successive readings.

    Args:
        clock: Seconds.
        longest_gap_s: Most time that one interval between two readings counts, more than a reader
            needs while Triton does not respond. A longer interval means that the reader was itself
            suspended, and the engines perhaps with it. Infinite for readers that poll irregularly.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, longest_gap_s: float = math.inf
    ) -> None:
        self._clock = clock
        self._longest_gap_s = longest_gap_s
        self._last_reading_s = clock()
        self._beats: dict[str, dict[tuple[int, int], float]] = {}
        """Heartbeats by model; then by incarnation and pid."""
        self.stalled_s: dict[str, dict[int, float]] = {}
        """Seconds without a heartbeat, by model and pid: one instance may hang beside others."""
        self.unresponsive_s = 0.0
        """Seconds without any reading at all."""

    def read_s_ago(self) -> float:
        """Seconds since the last reading."""
        return self._clock() - self._last_reading_s

    def update(self, engines: Mapping[str, EngineStats] | None) -> None:
        """Take a new reading.

        Args:
            engines: By model; None if Triton did not respond.
        """
        now_s = self._clock()
        passed_s = min(now_s - self._last_reading_s, self._longest_gap_s)
        self._last_reading_s = now_s
        if engines is None:
            self.unresponsive_s += passed_s
            return
        self.unresponsive_s = 0.0
        beats = {
            model: {(stats.incarnation, pid): n for pid, n in stats.process_beats.items()}
            for model, stats in engines.items()
        }
        self.stalled_s = {
            model: {
                process[1]: self.stalled_s[model][process[1]] + passed_s
                if self._beats.get(model, {}).get(process) == count
                else 0.0
                for process, count in processes.items()
            }
            for model, processes in beats.items()
        }
        self._beats = beats
