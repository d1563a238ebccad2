"""What a run has done so far, and what it costs: lines on stderr, and the summary of an output."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.console import Console

from serving.batch.places import Place
from serving.batch.worker import Report

SUMMARY = "summary.json"
_EVERY_S = 10.0
_EVERY_S_ON_TERMINAL = 0.5


@dataclass
class Progress:
    """Counts the reports of a run, and shows them.

    Attributes:
        total: Rows of the input.
        rows: Of which an answer or an error is written, those of earlier runs included.
        errors: Rows with an error among them.
        clock: Monotonic time in seconds.
    """

    total: int
    rows: int = 0
    errors: int = 0
    clock: Callable[[], float] = time.monotonic
    console: Console = field(default_factory=lambda: Console(stderr=True, highlight=False))
    _own: int = 0
    _tokens: int = 0
    _core_s: float = 0.0
    _shown_s: float = 0.0

    _started_s: float = 0.0

    def begin(self) -> None:
        """Measure from now on."""
        self._started_s = self._shown_s = self.clock()

    def add(self, report: Report) -> None:
        """Count a shard, and show the counts where it is time to."""
        self.rows += report.rows
        self.errors += report.errors
        self._own += report.rows
        self._tokens += report.tokens
        self._core_s += report.core_s
        is_terminal = self.console.is_terminal
        if self.clock() - self._shown_s >= (_EVERY_S_ON_TERMINAL if is_terminal else _EVERY_S):
            self._shown_s = self.clock()
            self.console.print(self.line, end="\r" if is_terminal else "\n", soft_wrap=True)

    @property
    def line(self) -> str:
        """The counts, for people."""
        share = 100 * self.rows / max(1, self.total)
        found = self.summary()
        return (
            f"{self.rows} of {self.total} rows ({share:.0f} %), {self.errors} errors; "
            f"{found['rows_per_s']} rows/s, {found['tokens_per_s']} tokens/s, "
            f"{found['core_s_per_1000_rows']} core-seconds per 1000 rows"
        )

    def summary(self) -> dict[str, float]:
        """The counts, and the cost of what this run has done."""
        seconds = max(1e-9, self.clock() - self._started_s)
        return {
            "rows": self.rows,
            "total_rows": self.total,
            "errors": self.errors,
            "rows_of_this_run": self._own,
            "seconds": round(seconds, 3),
            "rows_per_s": round(self._own / seconds, 2),
            "tokens_per_s": round(self._tokens / seconds, 1),
            "core_s_per_1000_rows": round(1000 * self._core_s / max(1, self._own), 2),
        }

    def write(self, folder: Place) -> None:
        """Write `summary.json` of an output."""
        with folder.replacing(SUMMARY) as file:
            file.write(json.dumps(self.summary(), indent=1).encode() + b"\n")
