"""What a running stack holds, and whether it grows."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression

import psutil

_SHARED_MEMORY = Path("/dev/shm")
ROLES = ("gateway", "supervisor", "tritonserver", "models")
"""Processes of a stack: the last are those of all models together."""
_MEMORY, _HANDLES, _THREADS = "memory", "handles", "threads"
LIMITS: Mapping[str, float] = {_MEMORY: 24e6, _HANDLES: 16, _THREADS: 16}
"""Growth of each role in the second half that is still no leak: bytes, open files, threads."""
MOST_SHARED = 24e6
MOST_LATENCY = 0.5
"""Growth of the median latency in the second half, as a share of its mean."""


@dataclass(frozen=True)
class Sample:
    """One moment.

    Attributes:
        at_s: Seconds since the start.
        values: By `role figure`, and `shared memory` in bytes.
    """

    at_s: float
    values: Mapping[str, float]


def take(serve: int, at_s: float) -> Sample:
    """What the processes below `triptych serve` hold now."""
    values: dict[str, float] = {}
    for process in psutil.Process(serve).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            role = _role(process)
            memory = process.memory_info()
            for figure, value in (
                (_MEMORY, memory.rss - memory.shared),
                (_HANDLES, process.num_fds()),
                (_THREADS, process.num_threads()),
            ):
                name = f"{role} {figure}"
                values[name] = values.get(name, 0) + value
    regions = [path for path in _SHARED_MEMORY.iterdir() if path.name.startswith("triptych")]
    sizes = 0
    for path in regions:
        with contextlib.suppress(FileNotFoundError):
            sizes += path.stat().st_blocks * 512
    return Sample(at_s, {**values, "shared memory": sizes})


def model_processes(serve: int, model: str) -> list[psutil.Process]:
    """The processes of one model."""
    found = []
    for process in psutil.Process(serve).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if _role(process) == "models" and any(f"/{model}/" in a for a in process.cmdline()):
                found.append(process)
    return found


def _role(process: psutil.Process) -> str:
    arguments = process.cmdline()
    if "gateway" in arguments:
        return "gateway"
    if "triton" in arguments:
        return "supervisor"
    is_server = bool(arguments) and arguments[0].endswith("tritonserver")
    return "tritonserver" if is_server else "models"


def growth(points: Sequence[tuple[float, float]]) -> float:
    """Growth from the begin to the end of the second half, by least squares.

    Args:
        points: (seconds, value).
    """
    kept = points[len(points) // 2 :]
    if len(kept) < 3:
        return 0.0
    slope = linear_regression([at_s for at_s, _ in kept], [value for _, value in kept]).slope
    return slope * (kept[-1][0] - kept[0][0])


@dataclass(frozen=True)
class Trend:
    """One figure's course."""

    name: str
    first: float
    last: float
    growth: float
    limit: float

    @property
    def is_growing(self) -> bool:
        """Whether it grows faster than it may."""
        return self.growth > self.limit


def trends(samples: Sequence[Sample], latencies: Sequence[tuple[float, float]]) -> list[Trend]:
    """Each figure's trend.

    Args:
        samples: In order.
        latencies: (seconds, median latency in seconds) of each interval.
    """
    found = []
    names = dict.fromkeys(name for sample in samples for name in sample.values)
    for name in names:
        points = [(each.at_s, each.values[name]) for each in samples if name in each.values]
        figure = name.rpartition(" ")[2]
        limit = MOST_SHARED if name == "shared memory" else LIMITS[figure]
        found.append(_trend(name, points, limit))
    if latencies:
        mean = sum(value for _, value in latencies) / len(latencies)
        found.append(_trend("latency", latencies, MOST_LATENCY * mean))
    return found


def _trend(name: str, points: Sequence[tuple[float, float]], limit: float) -> Trend:
    return Trend(name, points[0][1], points[-1][1], growth(points), limit)
