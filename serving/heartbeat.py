"""Engine metrics: how a model's processes report that they run and how full they are.

Each process of a model writes its figures to Triton's metrics endpoint, labelled with its pid;
`triptych triton` and the gateway read them there. `beats` counts the moments at which the process
was idle or had made progress since the moment before. It stops when the process hangs, is stopped
or is gone, and goes on under any load.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

PREFIX = "triptych_engine_"
BEATS = "beats"
COUNTERS = {
    BEATS: "Moments at which the process was idle or had made progress.",
    "steps": "Decode steps, or runs of a stateless model's session.",
    "step_seconds": "Seconds spent in them.",
    "admitted": "Sequences whose prompt was prefilled.",
    "row_steps": "Tokens decoded over all rows.",
    "prefill_tokens": "Source, image and prompt tokens prefilled, padding included.",
    "prefix_hits": "Prompts that began with a cached prefix.",
    "prefix_tokens": "Prompt tokens taken from the prefix cache.",
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
"""Both by their names in `serving.engine.metrics.Metrics`, except `beats`."""


@dataclass(frozen=True)
class EngineStats:
    """The figures that one model last reported.

    Attributes:
        incarnation: How often the supervisor has replaced the model's processes.
        processes: Figures by pid; one entry for each instance of the model.
    """

    incarnation: int
    processes: Mapping[int, Mapping[str, float]]

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


def labels(model: str, version: str, incarnation: str, pid: int) -> dict[str, str]:
    """Labels of one process's series.

    They are unique among the living: Triton lets two equal series share one metric, frees it with
    the first of them, and crashes when the second writes. The series of a process that was killed
    stay until the server ends.
    """
    return {"model": model, "version": version, "incarnation": incarnation, "process": str(pid)}


def read_engine_stats(exposition: str) -> dict[str, EngineStats]:
    """The stats of each model's newest incarnation.

    Args:
        exposition: What Triton's metrics endpoint returned, in Prometheus' text format.
    """
    found: defaultdict[str, defaultdict[int, defaultdict[int, dict[str, float]]]]
    found = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))
    for sample in samples(exposition, PREFIX):
        model, incarnation = sample.labels["model"], int(sample.labels["incarnation"])
        figures = found[model][incarnation][int(sample.labels["process"])]
        figures[sample.name.removeprefix(PREFIX)] = sample.value
    return {
        model: EngineStats(newest := max(incarnations), dict(incarnations[newest]))
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
