"""When a server that is being stopped has had time enough."""

from __future__ import annotations

import pytest

from serving.triton.control import Condition
from serving.triton.farewell import Farewell
from tests.serving.triton.tiny import vitals


class Ticking:
    """Stands for `time` in a module."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> Ticking:
    clock = Ticking()
    monkeypatch.setattr("serving.triton.farewell.time", clock)
    return clock


def test_stop_waits_for_engines_and_not_for_models(ticking: Ticking) -> None:
    condition = Condition({"a": vitals(1, rows=1)}, pending=0)
    farewell = Farewell(lambda: condition)
    farewell.begin(30)
    farewell.read("I1121 All models are stopped, unloading models")
    ticking.now_s = 20
    assert not farewell.is_over(), "a sequence is still being decoded"
    condition = Condition({"a": vitals(2, rows=0)}, pending=0)
    ticking.now_s = 22
    assert not farewell.is_over()
    ticking.now_s = 24
    assert farewell.is_over(), "the model may be kept loaded for ever"


def test_stop_waits_while_triton_says_that_requests_are_in_flight(ticking: Ticking) -> None:
    farewell = Farewell(lambda: Condition({}, pending=0))
    farewell.begin(30)
    ticking.now_s = 29
    assert not farewell.is_over()
    ticking.now_s = 31
    assert farewell.is_over()


def test_stop_in_haste_waits_for_nobody(ticking: Ticking) -> None:
    farewell = Farewell(lambda: Condition({}, pending=9))
    farewell.begin(30)
    farewell.hurry()
    farewell.await_idle()
    assert farewell.is_over()


def test_quiet_server_is_idle_after_two_heartbeats(ticking: Ticking) -> None:
    looks = iter([9, 9, 0, 1])
    farewell = Farewell(lambda: Condition({}, pending=next(looks, 0)))
    farewell.begin(30)
    farewell.await_idle()
    assert 1.2 < ticking.now_s < 3
