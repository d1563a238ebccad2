"""The studies of benchmarks/scaling/STUDY.md: this machine, load, a step of load, a failed node."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import simpy

from benchmarks.figures.style import canvas, save, settings
from benchmarks.harness.machine import write_json
from benchmarks.scaling.measure import TOKENS
from benchmarks.scaling.model import Autoscaler, Cluster, Costs, Process

_CLOSED_S = 3.0
_HALVINGS = 10


def fit_costs(closed: Mapping[str, Any], steps: int, cores: int) -> Costs:
    """The costs with which one and the most requests in flight are as fast as measured.

    A gateway takes the CPU time that it took with the most in flight, and so much more where it was
    idle before as it took more with one in flight. The client and the processes that pass a request
    on take theirs with eight. What remains is the step: its time with one row is found by halving,
    so that one request alone takes as long as measured, and then how it divides into `base_s` and
    `row_s`, so that the most in flight have the throughput that was measured.

    Args:
        closed: Requests in flight → what the closed loop measured.
        steps: Of a request.
        cores: Of the machine.
    """
    most, others = max(closed, key=int), others_of(closed)
    cpu_s = {
        count: {name: each / 1000 for name, each in closed[count]["cpu_ms"].items()}
        for count in ("1", "8", most)
    }
    own = Costs(
        gateway_s=cpu_s[most]["gateway"],
        wake_s=max(0.0, cpu_s["1"]["gateway"] - cpu_s[most]["gateway"]),
        base_s=0.0,
        row_s=0.0,
        steps=steps,
        client_s=sum(cpu_s["8"].get(name, 0.0) for name in ("client", "triton", "supervisor")),
    )

    def is_fast(costs: Costs, count: str) -> bool:
        found = closed_throughput(costs, int(count), cores, others)
        return found > closed[count]["requests_per_second"]

    longest_s = closed["1"]["p50_ms"] / 1000 / steps
    step_s = _halved(longest_s, lambda time_s: is_fast(replace(own, base_s=time_s), "1"))

    def divided(part: float) -> Costs:
        return replace(own, base_s=step_s * (1 - part), row_s=step_s * part)

    return divided(_halved(1.0, lambda part: is_fast(divided(part), most)))


def _halved(high: float, is_more: Callable[[float], bool]) -> float:
    """Where a claim ends that is true of smaller numbers, from 0 on."""
    low = 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_more(middle) else (low, middle)
    return (low + high) / 2


def others_of(closed: Mapping[str, Any]) -> float:
    """Cores that other programs used during the closed loops."""
    return float(np.mean([each.get("others", 0.0) for each in closed.values()]))


def closed_throughput(costs: Costs, in_flight: int, cores: int, others: float = 0.0) -> float:
    """Requests a second with so many in flight, on one machine."""
    env = simpy.Environment()
    cluster = Cluster(env, costs, gateways=1, tritons=1, cores=cores, others=others)

    def client() -> Process:
        while True:
            yield from cluster.request()

    for _ in range(in_flight):
        env.process(client())
    env.run(_CLOSED_S)
    return len(cluster.answers.latency_s) / _CLOSED_S


STEPS = {"embed": 1, "generate": TOKENS}
TARGET = 0.7
"""Of the capacity, as the autoscaler aims at."""
RATE = 10_000
RPS = 500.0
"""Of the studies of a cluster: a twentieth of it, with a twentieth of the machines."""
WINDOW_S = 10.0
SPARE_S, NEW_NODE_S = 25.0, 150.0
"""From a decision to a Triton that serves: on a node that there is, and on one that is ordered."""


@dataclass(frozen=True)
class Kind:
    """Requests of one kind at full size, by figures of docs/speed.md.

    Attributes:
        one_s: A step of one row.
        many_s: A step of 32 rows.
        gateway_s: CPU time of a gateway under load.
    """

    name: str
    one_s: float
    many_s: float
    gateway_s: float
    steps: int = 1
    rows: int = 64

    @property
    def costs(self) -> Costs:
        """Its service times: a line through both steps."""
        row_s = (self.many_s - self.one_s) / 31
        base_s = max(self.one_s - row_s, 0.0)
        return Costs(self.gateway_s, base_s, row_s, self.steps, self.rows)

    def machines(self, rate: float) -> dict[str, Any]:
        """How many of each process a rate takes at the target, with two cores a Triton."""
        tritons = math.ceil(rate / (TARGET * self.costs.capacity))
        gateways = math.ceil(rate * self.gateway_s / TARGET)
        return {
            "kind": self.name,
            "requests_per_triton": TARGET * self.costs.capacity,
            "tritons": tritons,
            "gateways": gateways,
            "cores": 2 * tritons + gateways,
        }


KINDS = (
    Kind("embed, MiniLM-L6, 16 tokens", 1 / 493, 32 / 2765, 0.0008),
    Kind("embed, BERT-base, 128 tokens", 1 / 46, 32 / 51, 0.0010),
    Kind("embed, CLIP B/32, JPEG", 1 / 84, 32 / 130, 0.0070),
    Kind("translate, Marian 74M, 25 tokens", 1 / 440, 32 / 2684, 0.0017, 25),
    Kind("generate, GPT-2 124M, 64 tokens", 1 / 164, 32 / 1102, 0.0017, 64),
)
TRANSLATE = KINDS[3]


def study(folder: Path) -> None:
    """Run all studies; writes `scaling.json` and `scaling.png`.

    Args:
        folder: Has `scaling-measured.json`.
    """
    measured = json.loads((folder / "scaling-measured.json").read_text(encoding="utf-8"))
    found = {
        "processor": measured["machine"].get("processor"),  # of what was measured
        "machines": [kind.machines(RATE) for kind in KINDS],
        "here": {name: here(each, STEPS[name]) for name, each in measured["workloads"].items()},
        "utilisation": [loaded(part) for part in (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)],
        "step": {
            "spare node": double_load(SPARE_S),
            "new node": double_load(NEW_NODE_S),
        },
        "failure": {str(part): fail_node(part) for part in (0.7, 0.9)},
    }
    write_json(found, folder / "scaling.json")
    draw(found, folder / "scaling.png")


def here(measured: Mapping[str, Any], steps: int, cores: int = 2) -> dict[str, Any]:
    """Latencies of open loops on this machine, predicted and measured."""
    costs, others = fit_costs(measured["closed"], steps, cores), others_of(measured["closed"])
    rows = []
    for each in measured["open"]:
        predicted = simulate(costs, each["rate"], 60, cores=cores, others=others)
        rows.append({"measured": each, "predicted": _percentiles(predicted.answers.latency_s)})
    return {"costs": asdict(costs), "open": rows}


def loaded(part: float) -> dict[str, Any]:
    """Latencies at a part of the capacity of as many Tritons as the rate needs."""
    tritons = TRANSLATE.machines(RPS)["tritons"]
    rate = part * tritons * TRANSLATE.costs.capacity
    cluster = simulate(TRANSLATE.costs, rate, 60, tritons=tritons)
    return {"part": part, **_percentiles(cluster.answers.latency_s)}


def double_load(start_s: float) -> dict[str, Any]:
    """The load doubles after a minute; an autoscaler follows."""
    scalers: list[Autoscaler] = []

    def prepare(cluster: Cluster) -> None:
        scalers.append(Autoscaler(cluster, start_s, most=40))
        cluster.env.process(scalers[0].run())

    def rate(now_s: float) -> float:
        return RPS if now_s < 60 else 2 * RPS

    cluster = simulate(TRANSLATE.costs, rate, 360, prepare=prepare)
    return {"windows": _windows(cluster), "tritons": scalers[0].history}


def fail_node(part: float) -> dict[str, Any]:
    """A node with a quarter of the Tritons ends after a minute, and returns."""

    def prepare(cluster: Cluster) -> None:
        lost = max(1, len(cluster.tritons) // 4)

        def failure() -> Process:
            yield cluster.env.timeout(60)
            cluster.fail(lost)
            for _ in range(lost):
                cluster.env.process(cluster.add(SPARE_S))

        cluster.env.process(failure())

    tritons = 8
    rate = part * tritons * TRANSLATE.costs.capacity
    cluster = simulate(TRANSLATE.costs, rate, 180, tritons=tritons, prepare=prepare)
    return {"windows": _windows(cluster), "moved": cluster.answers.moved}


def simulate(
    costs: Costs,
    rate: float | Callable[[float], float],
    seconds: float,
    *,
    tritons: int = 0,
    cores: int | None = None,
    others: float = 0.0,
    prepare: Callable[[Cluster], None] = lambda cluster: None,
) -> Cluster:
    """A cluster that served Poisson arrivals until all were answered.

    Args:
        rate: Requests a second, perhaps by time.
        tritons: 0: one on a machine whose cores are shared, else as many as the rate needs.
        cores: Of the one machine; None: a cluster.
        others: Cores that other programs of that machine use.
        prepare: Starts further processes.
    """
    env = simpy.Environment()
    at: Callable[[float], float] = rate if callable(rate) else lambda now_s: rate
    if cores is None:
        tritons = tritons or TRANSLATE.machines(at(0))["tritons"]
        gateways = max(1, math.ceil(at(seconds) * costs.gateway_s / TARGET))
        cluster = Cluster(env, costs, gateways, tritons)
    else:
        cluster = Cluster(env, costs, 1, 1, cores, others)
    chance = random.Random(11)
    env.process(cluster.arrive(lambda: chance.expovariate(at(env.now)), seconds))
    prepare(cluster)
    env.run(seconds + 30)
    return cluster


def _percentiles(latencies_s: Sequence[float]) -> dict[str, float]:
    p50, p95, p99 = 1000 * np.percentile(latencies_s, (50, 95, 99))
    return {"p50_ms": float(p50), "p95_ms": float(p95), "p99_ms": float(p99)}


def _windows(cluster: Cluster) -> list[dict[str, float]]:
    """Percentiles of the requests that arrived in each ten seconds."""
    arrived = np.array(cluster.answers.arrived_s)
    latencies = np.array(cluster.answers.latency_s)
    found = []
    for start_s in np.arange(0, arrived.max(), WINDOW_S):
        chosen = latencies[(arrived >= start_s) & (arrived < start_s + WINDOW_S)]
        if chosen.size:
            found.append({"start_s": float(start_s), **_percentiles(chosen.tolist())})
    return found


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Four panels: this machine, load, a step of load, a failed node."""
    with settings():
        figure, ((here, load), (step, failure)) = canvas(8, 5.6, rows=2, columns=2)
        _here(here, found["here"])
        parts = [each["part"] for each in found["utilisation"]]
        for name in ("p50_ms", "p99_ms"):
            load.plot(parts, [each[name] for each in found["utilisation"]], label=name[:3])
        load.set(title="load of the Tritons, of their capacity", ylabel="ms", ylim=(0, None))
        load.legend()
        _step(step, found["step"])
        for part, each in found["failure"].items():
            _latency(failure, each["windows"], f"load {part}")
        failure.axvspan(60, 85, color="0.92")
        failure.set(title="a node with a quarter of the Tritons ends", xlabel="s", ylabel="p99, s")
        failure.legend()
        save(figure, path)


def _here(axis: Any, found: Mapping[str, Any]) -> None:
    for (name, each), colour in zip(found.items(), ("C0", "C1"), strict=True):
        rates = [row["measured"]["rate"] for row in each["open"]]
        for kind, line in (("measured", "o-"), ("predicted", "x--")):
            for part, alpha in (("p50_ms", 1.0), ("p99_ms", 0.5)):
                values = [row[kind][part] for row in each["open"]]
                label = f"{name}, {kind} {part[:3]}"
                axis.plot(rates, values, line, color=colour, alpha=alpha, label=label)
    axis.set(title="this machine", xlabel="requests/s", ylabel="ms", yscale="log")
    axis.legend(fontsize=5, loc="upper left")
    axis.set_ylim(None, 3 * axis.get_ylim()[1])


def _step(axis: Any, found: Mapping[str, Any]) -> None:
    other = axis.twinx()
    for place, (name, each) in enumerate(found.items()):
        _latency(axis, each["windows"], name)
        times, counts = zip(*each["tritons"], strict=True)
        other.step(times, counts, color=f"C{place}", alpha=0.4, linestyle=":", where="post")
    other.set(ylabel="Tritons (dotted)", ylim=(0, None))
    axis.axvline(60, color="0.8", linewidth=0.8)
    axis.set(title="load doubles at 60 s", xlabel="s", ylabel="p99, s")
    axis.legend(loc="center right")


def _latency(axis: Any, windows: list[dict[str, float]], label: str) -> None:
    times = [each["start_s"] + 5 for each in windows]
    axis.plot(times, [each["p99_ms"] / 1000 for each in windows], label=label)
    axis.set_yscale("log")
