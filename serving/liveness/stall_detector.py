"""Stall detection over the engines' published statistics.

The supervisor restarts stalled models, the gateway reports them as not ready.

Apart from it, because the processes that write them need no parser.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from serving.liveness.heartbeat import BEATS, PREFIX


@dataclass(frozen=True)
class EngineStats:
    """The figures that one model last reported.

    Attributes:
        incarnation: How often the supervisor has replaced the model's processes.
        processes: Figures by pid; one entry for each instance of the model, for all its versions.
        versions: Version of the model by pid.
    """

    incarnation: int
    processes: Mapping[int, Mapping[str, float]]
    versions: Mapping[int, int] = field(default_factory=dict)

    def of_version(self, version: int) -> EngineStats:
        """The stats of one version: another one's process may be unloading, or may be dead."""
        return self.of_processes(
            {pid for pid in self.processes if self.versions.get(pid, version) == version}
        )

    def of_processes(self, pids: Set[int]) -> EngineStats:
        """The stats of these processes: the series of one that was killed stay."""
        kept = {pid: figures for pid, figures in self.processes.items() if pid in pids}
        return replace(self, processes=kept)

    @property
    def figures(self) -> dict[str, float]:
        """Each figure, summed over the processes."""
        total: Counter[str] = Counter()
        for figures in self.processes.values():
            total.update(figures)
        return dict(total)

    @property
    def beats(self) -> float:
        """The heartbeats of all processes."""
        return self.figures.get(BEATS, 0.0)

    @property
    def process_beats(self) -> dict[int, float]:
        """Heartbeats by pid: their sum would hide one process that hangs beside one that works."""
        return {pid: figures.get(BEATS, 0.0) for pid, figures in self.processes.items()}

    @property
    def is_busy(self) -> bool:
        """Whether sequences run or wait in any process."""
        figures = self.figures
        return bool(figures.get("rows_in_use") or figures.get("waiting"))


def read_engine_stats(exposition: str) -> dict[str, EngineStats]:
    """The stats of each model's newest incarnation.

    Args:
        exposition: What Triton's metrics endpoint returned, in Prometheus' text format.
    """
    found: defaultdict[str, defaultdict[int, defaultdict[int, dict[str, float]]]]
    found = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))
    versions: defaultdict[str, dict[int, int]] = defaultdict(dict)
    for sample in samples(exposition, PREFIX):
        model, incarnation = sample.labels["model"], int(sample.labels["incarnation"])
        pid = int(sample.labels["process"])
        found[model][incarnation][pid][sample.name.removeprefix(PREFIX)] = sample.value
        versions[model][pid] = int(sample.labels["version"])
    return {
        model: EngineStats(
            newest := max(incarnations), dict(incarnations[newest]), dict(versions[model])
        )
        for model, incarnations in found.items()
    }


def samples(exposition: str, prefix: str) -> Iterator[Sample]:
    """The samples whose names begin so.

    Other lines are dropped before they are parsed: most of what Triton reports is its own, and this
    runs twice a second.
    """
    ours = "\n".join(line for line in exposition.splitlines() if line.startswith(prefix))
    for family in text_string_to_metric_families(ours + "\n"):
        yield from family.samples


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
