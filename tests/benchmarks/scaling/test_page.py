"""The tables of benchmarks/scaling/STUDY.md are what the studies compute."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.scaling.study import KINDS, RATE, TARGET, TRANSLATE

ROOT = Path(__file__).parents[3]
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
