"""When a stopping server has had enough time."""

from __future__ import annotations

import pytest

from serving.triton.control import ServerStatus
from serving.triton.shutdown import ShutdownMonitor
from tests.serving.triton.tiny import engine_stats


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
    monkeypatch.setattr("serving.triton.shutdown.time", clock)
    return clock


def test_stop_waits_for_engines_and_not_for_models(ticking: Ticking) -> None:
    status = ServerStatus({"a": engine_stats(1, rows=1)}, pending=0)
    shutdown = ShutdownMonitor(lambda: status, lambda: True)
    shutdown.begin(30)
    shutdown.read_log("I1121 All models are stopped, unloading models")
    ticking.now_s = 20
    assert not shutdown.is_over(), "a sequence is still being decoded"
    status = ServerStatus({"a": engine_stats(2, rows=0)}, pending=0)
    ticking.now_s = 22
    assert not shutdown.is_over()
    ticking.now_s = 24
    assert shutdown.is_over(), "the model may be kept loaded for ever"


def test_stop_waits_while_triton_reports_requests_in_flight(ticking: Ticking) -> None:
    shutdown = ShutdownMonitor(lambda: ServerStatus({}, pending=0), lambda: False)
    shutdown.begin(30)
    ticking.now_s = 29
    assert not shutdown.is_over()
    ticking.now_s = 31
    assert shutdown.is_over()


@pytest.mark.parametrize("sends_spans", [False, True])
def test_server_without_model_processes_is_not_waited_for(
    ticking: Ticking, sends_spans: bool
) -> None:
    stubs = ["a"]
    shutdown = ShutdownMonitor(lambda: None, lambda: bool(stubs), sends_spans=sends_spans)
    shutdown.begin(30)
    shutdown.read_log("I1121 All models are stopped, unloading models")
    ticking.now_s = 1
    assert not shutdown.is_over(), "a model process may still answer"
    stubs.clear()
    assert not shutdown.is_over()
    ticking.now_s = 1.2
    assert not shutdown.is_over(), "its last response may not be sent"
    ticking.now_s = 1.5
    assert shutdown.is_over() != sends_spans


def test_stop_without_grace_does_not_wait(ticking: Ticking) -> None:
    shutdown = ShutdownMonitor(lambda: ServerStatus({}, pending=9), lambda: True)
    shutdown.begin(30)
    shutdown.stop_waiting()
    shutdown.await_idle()
    assert shutdown.is_over()


def test_quiet_server_is_idle_after_two_heartbeats(ticking: Ticking) -> None:
    looks = iter([9, 9, 0, 1])
    shutdown = ShutdownMonitor(lambda: ServerStatus({}, pending=next(looks, 0)), lambda: True)
    shutdown.begin(30)
    shutdown.await_idle()
    assert 1.2 < ticking.now_s < 3
