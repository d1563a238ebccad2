"""The simulation beside queueing theory, and the tables of benchmarks/scaling/STUDY.md."""

from __future__ import annotations

import json
import math
import random
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import simpy
import yaml

from benchmarks.scaling.model import Autoscaler, Cluster, Costs
from benchmarks.scaling.study import KINDS, RATE, TARGET, TRANSLATE, closed_throughput, fit_costs

NOTHING_S = 1e-9
MANIFESTS = Path(__file__).parents[2] / "docker" / "kubernetes"


def simulated(
    costs: Costs, rate: float, seconds: float, cores: int | None = None, **sizes: int
) -> Cluster:
    env = simpy.Environment()
    cluster = Cluster(env, costs, **{"gateways": 1, "tritons": 1, **sizes}, cores=cores)
    chance = random.Random(7)
    env.process(cluster.arrive(lambda: chance.expovariate(rate), seconds))
    env.run()
    return cluster


def test_one_row_at_a_time_waits_as_in_an_md1_queue() -> None:
    """Pollaczek and Khinchine: the mean wait is rho s / (2 (1 - rho)) for a constant time s."""
    service_s, rate = 0.01, 70.0
    costs = Costs(gateway_s=NOTHING_S, base_s=service_s, row_s=0.0, rows=1)
    found = np.mean(simulated(costs, rate, 300).answers.latency_s)
    used = rate * service_s
    assert found == pytest.approx(service_s + used * service_s / (2 * (1 - used)), rel=0.1)


def test_gateway_is_one_loop_too() -> None:
    """Two services of half the time each: busy for the whole of it."""
    costs = Costs(gateway_s=0.01, base_s=NOTHING_S, row_s=0.0)
    light = simulated(costs, 5, 200).answers.latency_s
    heavy = simulated(costs, 80, 200).answers.latency_s
    assert np.median(light) == pytest.approx(0.01, rel=0.02)
    assert np.mean(heavy) > 2 * np.mean(light)


def test_a_lone_sequence_takes_its_steps() -> None:
    costs = Costs(gateway_s=NOTHING_S, base_s=0.002, row_s=0.001, steps=10)
    found = simulated(costs, 0.01, 1000).answers.latency_s
    assert np.min(found) == pytest.approx(10 * 0.003)


def test_throughput_is_bounded_by_the_capacity_of_full_rows() -> None:
    costs = Costs(gateway_s=NOTHING_S, base_s=0.002, row_s=0.001, steps=5, rows=8)
    env = simpy.Environment()
    cluster = Cluster(env, costs, gateways=1, tritons=2)
    chance = random.Random(3)
    env.process(cluster.arrive(lambda: chance.expovariate(3 * 2 * costs.capacity), 20))
    env.run(20)
    assert len(cluster.answers.latency_s) / 20 == pytest.approx(2 * costs.capacity, rel=0.05)


def test_shared_cores_are_never_used_twice() -> None:
    """On one core a request costs the sum of what its processes do."""
    costs = Costs(gateway_s=0.004, base_s=0.006, row_s=0.0, rows=1)
    alone = simulated(costs, 50, 100)
    shared = simulated(costs, 50, 100, cores=1)
    assert np.mean(shared.answers.latency_s) > 1.3 * np.mean(alone.answers.latency_s)


def test_an_idle_loop_takes_longer_for_its_next_turn() -> None:
    """Two turns that find it idle, and in a burst only the first of all."""
    costs = Costs(gateway_s=0.004, wake_s=0.002, base_s=NOTHING_S, row_s=0.0)
    assert np.min(simulated(costs, 0.1, 300).answers.latency_s) == pytest.approx(0.006)
    busy = replace(costs, wake_s=0.0)
    full = {each: closed_throughput(each, 16, cores=2) for each in (costs, busy)}
    assert full[costs] == pytest.approx(full[busy], rel=0.01)


@pytest.mark.parametrize(("others", "share"), [(1.0, 1.0), (2.0, 2 / 3), (4.0, 2 / 5)])
def test_other_programs_take_their_part_of_the_cores(others: float, share: float) -> None:
    """A step beside one of them has a core; beside several, its part of two."""
    costs = Costs(gateway_s=NOTHING_S, base_s=0.09, row_s=0.0)
    alone = closed_throughput(costs, 1, cores=2)
    found = closed_throughput(costs, 1, cores=2, others=others)
    assert found / alone == pytest.approx(share, rel=0.1)


def test_no_request_is_lost_by_a_failure_and_none_starts_again() -> None:
    costs = Costs(gateway_s=0.0001, base_s=0.002, row_s=0.0, steps=50)
    env = simpy.Environment()
    cluster = Cluster(env, costs, gateways=1, tritons=2)
    chance = random.Random(1)
    arrivals = 0

    def gaps() -> float:
        nonlocal arrivals
        arrivals += 1
        return chance.expovariate(50)

    def failures() -> object:
        yield env.timeout(2)
        cluster.fail(2)
        env.process(cluster.add(1.0))

    env.process(cluster.arrive(gaps, 5))
    env.process(failures())
    env.run()
    answers = cluster.answers
    assert len(answers.latency_s) == arrivals
    assert answers.moved > 0
    assert np.max(answers.latency_s) < 1.0 + 50 * 0.002 + 0.05, "it keeps the steps that it had"


def test_autoscaler_reaches_what_the_load_needs_and_not_before_its_delays() -> None:
    costs = Costs(gateway_s=NOTHING_S, base_s=0.01, row_s=0.0, steps=20, rows=10)
    env = simpy.Environment()
    cluster = Cluster(env, costs, gateways=1, tritons=1)
    scaler = Autoscaler(cluster, start_s=30, target=0.7)
    chance = random.Random(2)
    rate = 3.5 * costs.capacity
    env.process(cluster.arrive(lambda: chance.expovariate(rate), 200))
    env.process(scaler.run())
    env.run(200)
    assert all(count == 1 for at_s, count in scaler.history if at_s < 15 + 30)
    assert len(cluster.up) >= 3.5 / scaler.target
    late = [
        latency
        for arrived_s, latency in zip(
            cluster.answers.arrived_s, cluster.answers.latency_s, strict=True
        )
        if arrived_s > 150
    ]
    assert np.median(late) == pytest.approx(20 * 0.01, rel=0.1)


def test_autoscaler_is_the_one_of_the_manifest() -> None:
    text = (MANIFESTS / "components" / "autoscaling" / "triton.yaml").read_text()
    spec = yaml.safe_load(text)["spec"]
    cluster = Cluster(simpy.Environment(), Costs(0.1, 0.1, 0.1), 1, 1)
    scaler = Autoscaler(cluster, start_s=1)
    assert float(spec["triggers"][0]["metadata"]["threshold"]) == scaler.target
    assert spec["pollingInterval"] == scaler.period_s
    policies = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleUp"]["policies"]
    pods, percent = (policy["value"] for policy in policies)
    for count in (2, 10):
        assert scaler.growth(count) == max(pods, count * percent // 100)


def test_costs_are_fitted_to_the_closed_loops_that_they_came_from() -> None:
    truth = Costs(gateway_s=0.001, base_s=0.002, row_s=0.0005, steps=10, client_s=0.0005)
    closed = {
        str(count): {
            "requests_per_second": closed_throughput(truth, count, cores=2),
            "p50_ms": 1000 * (truth.gateway_s + truth.client_s + 10 * 0.0025),
            "cpu_ms": {"gateway": 1.0, "client": 0.5},
        }
        for count in (1, 8, 32)
    }
    found = fit_costs(closed, steps=10, cores=2)
    assert found.base_s == pytest.approx(truth.base_s, rel=0.1)
    assert found.row_s == pytest.approx(truth.row_s, rel=0.1)


ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "benchmarks" / "scaling" / "STUDY.md").read_text(encoding="utf-8")
FOUND = json.loads((ROOT / "benchmarks" / "results" / "scaling.json").read_text())
CORES_A_NODE, DOLLARS = 28, 0.04
LOADS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)


def rows(heading: str) -> list[list[str]]:
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_machines() -> None:
    for cells, kind in zip(rows("How many"), KINDS, strict=True):
        made = kind.machines(RATE)
        assert cells[0].split(",")[0] in kind.name
        shown = [int(cell) for cell in cells[1:5]]
        nodes = math.ceil(made["cores"] / CORES_A_NODE)
        assert shown == [made["tritons"], made["gateways"], made["cores"], nodes]
        an_hour = made["cores"] * DOLLARS
        assert float(cells[5]) == pytest.approx(an_hour, rel=0.05)
        assert float(cells[6]) == pytest.approx(an_hour / 3600 / RATE * 1e6, abs=0.006)


def test_costs() -> None:
    for cells, kind in zip(rows("What a request costs"), KINDS, strict=True):
        one, many = map(float, re.findall(r"[\d.]+", cells[1]))
        assert one == pytest.approx(1000 * kind.one_s, rel=0.03)
        assert many == pytest.approx(1000 * kind.many_s, rel=0.03)
        assert int(cells[2]) == kind.steps
        assert float(cells[3].split()[0]) == 1000 * kind.gateway_s
        assert int(cells[4]) == round(TARGET * kind.costs.capacity)


@pytest.mark.parametrize(("part", "throughput"), [(0.25, 0.8), (0.7, 0.96)])
def test_rows_in_use_are_not_the_load(part: float, throughput: float) -> None:
    costs = TRANSLATE.costs
    fewer = replace(costs, rows=round(part * costs.rows))
    assert fewer.capacity / costs.capacity == pytest.approx(throughput, abs=0.015)


def test_studies() -> None:
    half, all_of_them = rows("Load")
    shown = dict(zip(LOADS, zip(half[1:], all_of_them[1:], strict=True), strict=True))
    for each in FOUND["utilisation"]:
        if each["part"] in shown:
            p50, p99 = (float(cell.split()[0]) for cell in shown[each["part"]])
            assert p50 == pytest.approx(each["p50_ms"], abs=1)
            assert p99 == pytest.approx(each["p99_ms"], abs=1)
    for cells, each in zip(rows("A step of load"), FOUND["step"].values(), strict=True):
        worst_s = max(window["p99_ms"] for window in each["windows"]) / 1000
        assert float(cells[1].split()[0]) == pytest.approx(worst_s, rel=0.05)
    for cells, each in zip(rows("A node that fails"), FOUND["failure"].values(), strict=True):
        worst_s = max(window["p99_ms"] for window in each["windows"]) / 1000
        assert int(cells[1]) == each["moved"]
        assert float(cells[2].split()[0]) == pytest.approx(worst_s, rel=0.05)


def test_prediction() -> None:
    shown = iter(rows("Its prediction for this machine"))
    for name, each in FOUND["here"].items():
        for one in each["open"]:
            request, rate, others, *percentiles = next(shown)
            assert (request, int(rate)) == (name, round(one["measured"]["rate"]))
            assert float(others) == pytest.approx(one["measured"]["others"], abs=0.06)
            for cell, part in zip(percentiles, ("p50_ms", "p99_ms"), strict=True):
                measured, predicted = map(int, re.findall(r"\d+", cell))
                assert measured == round(one["measured"][part])
                assert predicted == round(one["predicted"][part])
    assert next(shown, None) is None
