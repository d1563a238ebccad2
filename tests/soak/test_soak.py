"""A leak is seen, and minutes of mixed load show none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import running
from tests.soak.__main__ import FULL_PREFIXES, KILLS, medians, report, soak
from tests.soak.samples import Sample, growth, trends


def samples(memory_a_second: float) -> list[Sample]:
    return [
        Sample(5.0 * n, {"gateway memory": 1e8 + memory_a_second * 5 * n, "shared memory": 1e6})
        for n in range(100)
    ]


def test_growth_is_that_of_the_second_half() -> None:
    assert growth([(t, min(t, 50)) for t in range(101)]) == pytest.approx(0)
    assert growth([(t, 3 * t) for t in range(101)]) == pytest.approx(150)
    assert growth([]) == 0


@pytest.mark.parametrize(("a_second", "is_growing"), [(0, False), (5e4, False), (2e5, True)])
def test_a_leak_is_seen(a_second: float, *, is_growing: bool) -> None:
    found = {trend.name: trend for trend in trends(samples(a_second), [])}
    assert found["gateway memory"].is_growing == is_growing
    assert not found["shared memory"].is_growing


def test_slower_answers_are_seen() -> None:
    steady = [(60.0 * n, 0.1) for n in range(20)]
    slower = [(60.0 * n, 0.1 + 0.02 * n) for n in range(20)]
    assert not trends([], steady)[0].is_growing
    assert trends([], slower)[0].is_growing


def test_medians_are_of_each_minute() -> None:
    assert medians([(1, 0.1), (2, 0.3), (59, 0.2), (61, 5.0)]) == [(30, 0.2), (90, 5.0)]


@pytest.mark.full
@pytest.mark.integration
def test_minutes_of_mixed_load(repository: Path, tmp_path: Path) -> None:
    with running(repository, tmp_path, **dict([FULL_PREFIXES])) as stack:
        load, taken = soak(stack, seconds=180, workers=4)
    assert load.kills == KILLS
    assert report(load, trends(taken, medians(load.latencies))) == 0, load.failures[:5]
