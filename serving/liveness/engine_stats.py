"""Reads the engine metrics that `serving.liveness.heartbeat` names, from Triton's metrics endpoint.

Apart from it, because the processes that write them need no parser.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Set
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
