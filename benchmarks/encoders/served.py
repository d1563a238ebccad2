"""Through HTTP: closed loops against our gateway and against a peer, in turn.

Both servers of a pair are up at the same time, on the same cores; the one that is not measured is
idle. One text or one JPEG file a request, as users send them; joining them is the server's work.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.encoders import report
from benchmarks.encoders.models import MODELS, Item, Traffic
from benchmarks.encoders.servers import Server, running, summary, supports
from benchmarks.harness.closed_loop import Loop, closed_loop, interleave
from benchmarks.harness.machine import CLIENT, OTHER

ENGINES = (
    "triptych openvino-int8",
    "triptych openvino-bf16",
    "triptych onnxruntime-fp32",
    "infinity torch-fp32",
    "infinity torch-bf16",
    "infinity optimum-fp32",
)
WARM_UPS = 3
LEAST_COUNTED_S = 3.0
LEAST_FILL_S = 0.5
LONGEST_WAIT_S = 60.0
"""A level at which a request would wait longer is left out; the gateway's own time limit."""
Row = dict[str, Any]


@dataclass
class ServedSystem:
    """A running server and what it did so far."""

    engine: str
    server: Server
    report: dict[str, Any]
    loops: dict[tuple[Traffic, int], list[Loop]] = field(default_factory=dict)
    failures: dict[tuple[Traffic, int], list[str]] = field(default_factory=dict)
    slowest_s: dict[Traffic, float] = field(default_factory=dict)
    """Seconds of work for each request at the level measured last: 1 / throughput."""

    def warm_up(self, traffic: Traffic, items: Iterator[Item]) -> None:
        """Uncounted requests, one after the other; the last one's time is the first estimate."""
        for item in itertools.islice(items, WARM_UPS):
            started_s = time.perf_counter()
            self.server.send(item)
            self.slowest_s[traffic] = time.perf_counter() - started_s
        self.server.take_failures()
        self.server.close()

    def measure(
        self, traffic: Traffic, in_flight: int, items: Iterator[Item], least_s: float
    ) -> None:
        """One loop, long enough for each request to be answered about once while it counts."""
        wait_s = in_flight * self.slowest_s.get(traffic, 0.0)
        loop = closed_loop(
            self.server.send,
            items,
            in_flight,
            counted_s=max(least_s, wait_s),
            fill_s=max(LEAST_FILL_S, wait_s),
        )
        self.loops.setdefault((traffic, in_flight), []).append(loop)
        self.failures.setdefault((traffic, in_flight), []).extend(self.server.take_failures())
        if loop.tokens_per_second:
            self.slowest_s[traffic] = 1 / loop.tokens_per_second

    def fits(self, traffic: Traffic, in_flight: int) -> bool:
        """Whether a request at this level will be answered in time."""
        return in_flight * self.slowest_s.get(traffic, 0.0) < LONGEST_WAIT_S


def kinds(model: str, longest: int, titles: Sequence[str] | None = None) -> list[Traffic]:
    """What a model is sent; texts over `longest` tokens are left out.

    Args:
        titles: Of those that are wanted; by default all.
    """
    lengths = MODELS[model].lengths
    found = [Traffic(length) for length in lengths if length <= longest] or [Traffic(None)]
    if model == "minilm-l6":
        found.append(Traffic(0))
    return [traffic for traffic in found if not titles or traffic.title in titles]


def measure(
    model: str,
    engines: Sequence[str],
    levels: Sequence[int],
    rounds: int,
    longest: int,
    titles: Sequence[str] | None,
    least_s: float,
    cache: Path,
    console: Console,
) -> list[Row]:
    """Rows of one model: each engine's loops at each level, and how its vectors agree."""
    works = report.probes(model, longest)
    with console.status(f"{model}: the vectors of transformers"):
        expected = report.reference(model, works, cache)
    systems = []
    with ExitStack() as stack:
        for engine in (engine for engine in engines if supports(engine, model)):
            with console.status(f"starting {engine} with {model}"):
                server = stack.enter_context(running(engine, model, cache))
                agreed = report.check(engine, server, works, expected)
            console.print(f"{model}, {engine}: {agreed}")
            systems.append(ServedSystem(engine, server, agreed))
        for traffic in kinds(model, longest, titles):
            with console.status(f"{model}, {traffic.title}"):
                take_turns(systems, traffic, levels, rounds, least_s, console)
    return [
        {"model": model, "work": traffic.title, "in_flight": in_flight, "engine": one.engine}
        | row(one.engine, loops, one.failures[traffic, in_flight])
        | {"agreement": one.agreement}
        for one in systems
        for (traffic, in_flight), loops in one.loops.items()
    ]


def take_turns(
    systems: Sequence[ServedSystem],
    traffic: Traffic,
    levels: Sequence[int],
    rounds: int,
    least_s: float,
    console: Console,
) -> None:
    """All levels in each round, with the servers in another order each."""
    items, levels = traffic.items(seed=0), sorted(levels)
    for one in systems:
        one.warm_up(traffic, items)
    for number, one in interleave(systems, rounds * len(levels), LEAST_FILL_S):
        in_flight = levels[number % len(levels)]
        if one.fits(traffic, in_flight):
            one.measure(traffic, in_flight, items, least_s)
        else:
            console.print(f"{one.engine}, {in_flight} in flight: over {LONGEST_WAIT_S:.0f} s")


def row(engine: str, loops: Sequence[Loop], failures: list[str]) -> Row:
    """Medians over rounds; percentiles over the requests of all rounds."""
    latencies = [value for loop in loops for value in loop.latencies_ms]
    p50, p99 = np.percentile(latencies, [50, 99]) if latencies else (float("nan"),) * 2
    shares = [own_cpu_ms(engine, loop.cpu_ms) for loop in loops]
    cpu_ms = {part: median(share.get(part, 0.0) for share in shares) for part in shares[0]}
    return {
        "per_second": round(median(loop.tokens_per_second for loop in loops), 2),
        "rounds": [round(loop.tokens_per_second, 2) for loop in loops],
        "p50_ms": round(float(p50), 2),
        "p99_ms": round(float(p99), 2),
        "requests": len(latencies),
        "cpu_ms": {part: round(ms, 3) for part, ms in cpu_ms.items()},
        **summary(failures),
    }


def own_cpu_ms(engine: str, cpu_ms: Mapping[str, float]) -> dict[str, float]:
    """The client's part and the server's; all of infinity is one part, `server`."""
    if engine.startswith("triptych"):
        return {part: ms for part, ms in cpu_ms.items() if part != OTHER}
    return {"server": cpu_ms.get(OTHER, 0.0), CLIENT: cpu_ms[CLIENT]}
