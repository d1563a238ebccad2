"""The fuzzer notices what is wrong, says the same for the same seed, and finds nothing."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.conftest import Stack
from tests.fuzz import cases
from tests.fuzz.__main__ import Outcome, fuzz, report

ERROR = b'{"error": {"type": "internal", "message": "a"}}'
ALLOWED = frozenset({200, 429, 500, 503})


@pytest.mark.parametrize(
    ("status", "content", "seconds", "problem"),
    [
        (200, b'{"data": []}', 0.1, None),
        (429, ERROR, 0.1, None),
        (503, ERROR, 0.1, None),
        (422, ERROR, 0.1, None),
        (500, ERROR, 0.1, "status 500"),
        (418, ERROR, 0.1, "undeclared status 418"),
        (422, b"no", 0.1, "without an error's body"),
        (422, b'{"detail": 1}', 0.1, "without an error's body"),
        (422, b'{"error": "Traceback (most recent"}', 0.1, "inside"),
        (422, b'{"error": "<object at 0x7f2ab587c9a0>"}', 0.1, "inside"),
        (200, b'{"score": NaN}', 0.1, "not JSON"),
        (200, b'{"data"', 0.1, "not JSON"),
        (200, b'{"data": []}', 31, "took 31 s"),
    ],
)
def test_verdicts(status: int, content: bytes, seconds: float, problem: str | None) -> None:
    found = cases.problem(status, "application/json", content, seconds, ALLOWED)
    assert found is None if problem is None else problem in (found or "")


def test_growth_is_that_of_the_second_half() -> None:
    filling = [(n, 100 * min(n, 500)) for n in range(0, 1000, 10)]
    assert cases.growth(filling) == pytest.approx(0, abs=1e-6)
    assert cases.growth([(n, 2 * n) for n in range(100)]) == pytest.approx(2000)


@pytest.mark.parametrize(
    ("log", "is_ready", "is_wrong"),
    [
        ("answered", True, False),
        ("answered", False, True),
        ("Traceback (most recent call last)", True, True),
        ("ERROR x: bug request_id=1", True, True),
    ],
)
def test_report(log: str, *, is_ready: bool, is_wrong: bool) -> None:
    assert report(Outcome(done=10), log, is_ready=is_ready) == is_wrong
    assert report(Outcome(failures=["a"]), "", is_ready=True) == 1


def test_same_seed_same_requests() -> None:
    first = list(itertools.islice(cases.requests(5), 50))
    assert first == list(itertools.islice(cases.requests(5), 50))
    assert first != list(itertools.islice(cases.requests(6), 50))
    assert {request.route for request in first} <= set(cases.BODIES)


def test_every_method_is_called() -> None:
    called = Counter(cases.call(random.Random(n))[0].name for n in range(1000))
    assert set(called) == {method.name for method in cases.METHODS}


@pytest.mark.full
@pytest.mark.integration
def test_nothing_is_found(stack: Stack) -> None:
    outcome = fuzz(stack, requests=3000, seed=2, workers=8)
    log = Path(stack.log).read_text(errors="replace")
    assert report(outcome, log, is_ready=True) == 0, outcome.failures[:5]
    assert outcome.done == 3000
    assert outcome.counts["200"] > 300
    assert outcome.counts["OK"] > 30
