"""Whose heart stands still: the judgement over what engines publish (`serving.heartbeat`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from serving.heartbeat import Vitals

_LONGEST_GAP_S = 2.0


class Pulse:
    """Compares each look at the engines with the one before.

    Time counts only as far as we looked: when this process itself stood still (a suspended machine,
    a busy one), the engines may have too.

    Args:
        stuck_after_s: A heart that stands still so long will not move again.
        clock: Seconds.
    """

    def __init__(self, stuck_after_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._stuck_after_s = stuck_after_s
        self._clock = clock
        self._last_look_s = clock()
        self._seen: dict[str, tuple[int, float]] = {}
        self._still_s: dict[str, float] = {}
        self._silent_s = 0.0

    @property
    def is_silent(self) -> bool:
        """Whether nothing at all has been heard for that long."""
        return self._silent_s > self._stuck_after_s

    def look(self, engines: Mapping[str, Vitals] | None) -> list[str]:
        """Models whose heart has stood still too long.

        Args:
            engines: By model; None when nobody answers.
        """
        now_s = self._clock()
        passed_s = min(now_s - self._last_look_s, _LONGEST_GAP_S)
        self._last_look_s = now_s
        if engines is None:
            self._silent_s += passed_s
            return []
        self._silent_s = 0.0
        self._still_s = {
            model: self._still_s.get(model, 0.0) + passed_s
            if self._seen.get(model) == (vital.incarnation, vital.beats)
            else 0.0
            for model, vital in engines.items()
        }
        self._seen = {model: (vital.incarnation, vital.beats) for model, vital in engines.items()}
        return [model for model, still_s in self._still_s.items() if still_s > self._stuck_after_s]
