"""Supervision of a server that dies, hangs, fails or is stopped."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from inference.errors import SetupError
from serving.liveness.stall_detector import EngineStats
from serving.triton import supervisor as supervision
from serving.triton.control import ServerStatus
from serving.triton.lifetime import ShutdownMonitor
from serving.triton.server import TritonServer
from serving.triton.supervisor import WATCH_PERIOD_S, Supervisor
from tests.serving.triton.tiny import engine_stats
from tests.serving.waiting import Clock


@pytest.fixture(autouse=True)
def _low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "_CHEAP_DEAD_STUBS", 2)
    monkeypatch.setattr(supervision, "MAX_DEAD_STUBS", 4)
    monkeypatch.setattr(supervision, "MAX_FAILED_STARTS", 3)


class FakeServer:
    """A supervised server that dies, hangs or fails on command."""

    def __init__(self, *, is_alive: bool = True, dead_stubs: int = 0, starts: bool = True) -> None:
        self.settings = SimpleNamespace(stuck_after=10)
        self.is_alive = is_alive
        self.dead_stubs = dead_stubs
        self.held_bytes, self.shared_bytes = 0, 1 << 30
        self.starts = starts
        self.is_missing_stubs = False
        self.last_output = "killed by SIGSEGV"
        self.engines: dict[str, EngineStats] | None = {"a": engine_stats(1)}
        self.calls: list[str] = []
        self.repository = SimpleNamespace(names=list)
        self.wait_s: Callable[[float], None] = lambda seconds: None
        """Called while a call waits for a server that does not respond."""
        self.clock = Clock()
        self.supervisor = Supervisor(cast(TritonServer, self), clock=self.clock)

    def watch(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.now_s += 1
            self.supervisor.check()

    def heal(self) -> list[str]:
        self.calls.append("heal")
        if self.engines is None:
            self.wait_s(2.0)
        return []

    def status(self) -> ServerStatus | None:
        if self.engines is None:
            self.wait_s(1.0)
        return None if self.engines is None else ServerStatus(self.engines, pending=0)

    def shared_memory(self) -> tuple[int, int]:
        return self.held_bytes, self.shared_bytes

    def kill_stubs(self, model: str, pids: set[int]) -> set[int]:
        assert pids, "listing processes takes long: not for nothing"
        self.calls += [f"kill {model} {pid}" for pid in pids]
        return pids

    def stop(self, *, at_once: bool) -> None:
        assert at_once, "a broken server is waited for"
        self.calls.append("stop")
        self.is_alive, self.dead_stubs = False, 0

    def start(self, *, strict: bool) -> None:
        assert not strict, "one bundle that does not load must not keep the others down"
        self.calls.append("start")
        if not self.starts:
            raise SetupError("no")
        self.is_alive = True


def test_healthy_server_is_left_alone() -> None:
    server = FakeServer(dead_stubs=2)
    server.supervisor.check()
    assert server.calls == ["heal"]


def test_one_dead_stub_too_many_restarts_the_server_instead_of_healing() -> None:
    server = FakeServer(dead_stubs=4)
    server.is_missing_stubs = True
    server.supervisor.check()
    assert server.calls == ["stop", "start"]


@pytest.mark.parametrize(
    ("dead_stubs", "held_bytes", "shared_bytes", "is_restarted"),
    [
        (1, 900 << 20, 1 << 30, False),
        (2, 256 << 20, 1 << 30, False),
        (2, (256 << 20) + 1, 1 << 30, True),
        (3, (256 << 20) + 1, 1 << 40, False),
        (3, 16 << 20, 64 << 20, False),
        (2, (16 << 20) + 1, 64 << 20, True),
    ],
)
def test_dead_stubs_that_hold_little_memory_cause_no_restart(
    *, dead_stubs: int, held_bytes: int, shared_bytes: int, is_restarted: bool
) -> None:
    server = FakeServer(dead_stubs=dead_stubs)
    server.is_missing_stubs = True
    server.held_bytes, server.shared_bytes = held_bytes, shared_bytes
    server.supervisor.check()
    assert server.calls == (["stop", "start"] if is_restarted else ["heal"])


def test_server_that_does_not_start_is_given_up() -> None:
    server = FakeServer(is_alive=False, starts=False)
    with pytest.raises(SetupError, match="gave up: Triton did not start 3 times in a row: no"):
        server.watch(60)
    assert server.calls.count("start") == 3


def test_server_that_requests_end_again_and_again_is_never_given_up() -> None:
    server = FakeServer()
    for _ in range(1100):
        server.is_alive = False  # the next request
        server.watch(11)
    assert server.calls.count("start") == 1100


def test_restarts_of_a_crashing_server_are_ever_farther_apart() -> None:
    server = FakeServer()
    starts = []
    while len(starts) < 7:
        server.is_alive = False
        before = len(server.calls)
        server.watch(1)
        starts += [server.clock.now_s] if "start" in server.calls[before:] else []
    assert starts[0] == 1, "the first restart is at once"
    assert [b - a for a, b in itertools.pairwise(starts)] == [2, 3, 5, 9, 11, 11]


def test_healthy_minute_ends_the_back_off() -> None:
    server = FakeServer()
    for _ in range(5):
        server.is_alive = False
        server.watch(11)
    for beats in range(62):
        server.engines = {"a": engine_stats(beats)}
        server.watch(1)
    server.is_alive = False
    server.calls.clear()
    server.watch(1)
    assert server.calls == ["stop", "start"]


def test_failed_start_between_crashes_does_not_add_up() -> None:
    server = FakeServer()
    for _ in range(10):
        server.is_alive, server.starts = False, False
        while server.calls[-1:] != ["start"]:
            server.watch(1)
        server.starts = True
        server.watch(11)
        assert server.is_alive
        server.calls.clear()


def test_model_without_heartbeat_is_killed() -> None:
    server = FakeServer()
    for beats in range(20):
        server.engines = {"a": engine_stats(beats), "b": engine_stats(7 if beats > 7 else beats)}
        server.watch(1)
    assert {call for call in server.calls if "kill" in call} == {"kill b 7"}


def test_one_process_that_hangs_is_killed_and_the_models_other_one_is_not() -> None:
    server = FakeServer()
    for beats in range(20):
        figures = {7: {"beats": beats}, 8: {"beats": min(beats, 7)}}
        server.engines = {"a": EngineStats(0, figures)}
        server.watch(1)
    assert {call for call in server.calls if "kill" in call} == {"kill a 8"}


def test_model_with_slow_heartbeat_is_left_alone() -> None:
    server = FakeServer()
    for beats in range(5):
        server.engines = {"a": engine_stats(beats, rows=64)}
        server.watch(9)
    assert set(server.calls) == {"heal"}


def test_time_between_two_distant_checks_does_not_count() -> None:
    server = FakeServer()
    server.supervisor.check()
    server.clock.now_s += 3600  # the machine slept
    server.supervisor.check()
    assert set(server.calls) == {"heal"}


def test_unresponsive_server_is_restarted() -> None:
    server = FakeServer()
    server.engines = None
    server.watch(11)
    assert server.calls[-2:] == ["stop", "start"]


def test_hung_server_is_restarted_after_the_real_time() -> None:
    """Each call waits for its timeout: that time counts, too."""
    server = FakeServer()
    server.supervisor.check()
    server.engines, server.wait_s = None, server.clock.sleep
    hung_s = server.clock.now_s
    while "start" not in server.calls:
        server.clock.now_s += WATCH_PERIOD_S
        server.supervisor.check()
    assert 10 < server.clock.now_s - hung_s <= 10 + 2
    assert "heal" not in server.calls[1:], "further calls wait as well"


def test_idle_server_with_dead_stubs_is_restarted() -> None:
    server = FakeServer(dead_stubs=2)
    for beats in range(100):
        server.engines = {"a": engine_stats(beats, rows=beats % 2)}
        server.watch(1)
    assert set(server.calls) == {"heal"}, "it was restarted under load"
    for beats in range(100, 200):
        server.engines = {"a": engine_stats(beats)}
        server.watch(1)
    assert server.calls.count("start") == 1
    assert server.dead_stubs == 0


def test_encoder_with_short_runs_counts_as_busy() -> None:
    """A hundred runs a second end between two readings; canaries alone do not count."""
    server = FakeServer(dead_stubs=2)
    for second in range(100):
        server.engines = {"clip": EngineStats(0, {7: {"beats": second, "steps": 100.0 * second}})}
        server.watch(1)
    assert set(server.calls) == {"heal"}, "it was restarted under load"
    for second in range(100):
        figures = {"beats": 100.0 + second, "steps": 9900.0 + second // 10}
        server.engines = {"clip": EngineStats(0, {7: figures})}
        server.watch(1)
    assert server.calls.count("start") == 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("serving.triton.lifetime.time", clock)
    return clock


def test_stop_waits_for_engines_and_not_for_models(clock: Clock) -> None:
    status = ServerStatus({"a": engine_stats(1, rows=1)}, pending=0)
    shutdown = ShutdownMonitor(lambda: status, lambda: True)
    shutdown.begin(30)
    shutdown.read_log("I1121 All models are stopped, unloading models")
    clock.now_s = 20
    assert not shutdown.is_over(), "a sequence is still being decoded"
    status = ServerStatus({"a": engine_stats(2, rows=0)}, pending=0)
    clock.now_s = 22
    assert not shutdown.is_over()
    clock.now_s = 24
    assert shutdown.is_over(), "the model may be kept loaded for ever"


def test_stop_waits_while_triton_reports_requests_in_flight(clock: Clock) -> None:
    shutdown = ShutdownMonitor(lambda: ServerStatus({}, pending=0), lambda: False)
    shutdown.begin(30)
    clock.now_s = 29
    assert not shutdown.is_over()
    clock.now_s = 31
    assert shutdown.is_over()


@pytest.mark.parametrize("sends_spans", [False, True])
def test_server_without_model_processes_is_not_waited_for(clock: Clock, sends_spans: bool) -> None:
    stubs = ["a"]
    shutdown = ShutdownMonitor(lambda: None, lambda: bool(stubs), sends_spans=sends_spans)
    shutdown.begin(30)
    shutdown.read_log("I1121 All models are stopped, unloading models")
    clock.now_s = 1
    assert not shutdown.is_over(), "a model process may still answer"
    stubs.clear()
    assert not shutdown.is_over()
    clock.now_s = 1.2
    assert not shutdown.is_over(), "its last response may not be sent"
    clock.now_s = 1.5
    assert shutdown.is_over() != sends_spans


def test_stop_without_grace_does_not_wait(clock: Clock) -> None:
    shutdown = ShutdownMonitor(lambda: ServerStatus({}, pending=9), lambda: True)
    shutdown.begin(30)
    shutdown.stop_waiting()
    shutdown.await_idle()
    assert shutdown.is_over()


def test_quiet_server_is_idle_after_two_heartbeats(clock: Clock) -> None:
    looks = iter([9, 9, 0, 1])
    shutdown = ShutdownMonitor(lambda: ServerStatus({}, pending=next(looks, 0)), lambda: True)
    shutdown.begin(30)
    shutdown.await_idle()
    assert 1.2 < clock.now_s < 3
