"""Service times of the model out of closed loops that were measured on one machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import simpy

from benchmarks.scaling.model import Cluster, Costs, Process

_CLOSED_S = 3.0
_HALVINGS = 10


def fitted(closed: Mapping[str, Any], steps: int, cores: int) -> Costs:
    """The costs with which one and the most requests in flight are as fast as measured.

    Client and gateway take the CPU time that they took, with eight in flight. What one request
    alone takes beyond these is its steps; how it divides into `base_s` and `row_s` is found by
    halving, so that the most in flight have the throughput that was measured.

    Args:
        closed: Requests in flight → what the closed loop measured.
        steps: Of a request.
        cores: Of the machine.
    """
    middle = closed["8"]["cpu_ms"]
    gateway_s, client_s = middle["gateway"] / 1000, middle["client"] / 1000
    step_s = max(closed["1"]["p50_ms"] / 1000 - gateway_s - client_s, 1e-5) / steps
    most = max(closed, key=int)
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        part = (low + high) / 2
        costs = Costs(gateway_s, step_s * (1 - part), step_s * part, steps=steps, client_s=client_s)
        found = closed_throughput(costs, int(most), cores)
        is_fast = found > closed[most]["requests_per_second"]
        low, high = (part, high) if is_fast else (low, part)
    return costs


def closed_throughput(costs: Costs, in_flight: int, cores: int) -> float:
    """Requests a second with so many in flight, on one machine."""
    env = simpy.Environment()
    cluster = Cluster(env, costs, gateways=1, tritons=1, cores=cores)

    def client() -> Process:
        while True:
            yield from cluster.request()

    for _ in range(in_flight):
        env.process(client())
    env.run(_CLOSED_S)
    return len(cluster.answers.latency_s) / _CLOSED_S
