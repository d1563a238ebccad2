"""Closed loops: what is in flight, and what counts."""

from __future__ import annotations

import contextlib
import itertools
import threading

import pytest

from benchmarks.harness.closed_loop import Answered, closed_loop, counted


def test_closed_loop_keeps_a_fixed_number_in_flight() -> None:
    gathered = threading.Barrier(3)

    def ask(text: str) -> int:
        with contextlib.suppress(threading.BrokenBarrierError):
            gathered.wait(timeout=5)
        gathered.abort()
        return len(text)

    loop = closed_loop(ask, itertools.repeat("four"), 3, counted_s=0.01, fill_s=0.0)
    assert loop.tokens_per_second == pytest.approx(4 * loop.requests_per_second)
    assert loop.cpu_ms["client"] >= 0


def test_only_what_was_done_within_the_time_is_counted() -> None:
    before, across, within = (
        Answered(0.0, 1.0, 32),
        Answered(1.0, 3.0, 32),
        Answered(2.5, 3.5, 32),
    )
    loop = counted([before, across, within], 2.0, 4.0, {"gateway": 0.3})
    assert loop.requests_per_second == pytest.approx(1.5 / 2)
    assert loop.tokens_per_second == pytest.approx(48 / 2)
    assert loop.latencies_ms == (2000.0, 1000.0)
    assert loop.cpu_ms == {"gateway": pytest.approx(200.0)}


def test_loop_in_which_no_request_ran_has_no_throughput() -> None:
    loop = counted([], 2.0, 4.0, {"gateway": 0.0})
    assert (loop.requests_per_second, loop.latencies_ms) == (0.0, ())
    assert loop.cpu_ms == {"gateway": 0.0}
