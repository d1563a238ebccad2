"""Heartbeats of models that make progress, and the probes of a Triton container."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from inference.engine.engine import EngineMetrics
from serving import probe
from serving.liveness.heartbeat import (
    BEATS,
    COUNTERS,
    GAUGES,
    PREFIX,
    REPORTED,
    Heartbeat,
    SessionStats,
    labels,
)
from serving.liveness.stall_detector import read_engine_stats
from serving.triton.control_socket import ControlSocket
from tests.serving.triton.tiny import brief_server, publish_times, settings

TIMEOUT_S = 20


@dataclass
class FakeEngine:
    metrics: EngineMetrics = field(default_factory=EngineMetrics)
    is_asleep: bool = True


class FakeMetric:
    """Adds up; `pb_utils.Metric` refuses a counter's decrease."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.value = 0.0
        self.written = threading.Event()

    def increment(self, value: float) -> None:
        assert value >= 0 or self.name in GAUGES
        self.value += value
        self.written.set()


def started(monitored: FakeEngine | SessionStats, metrics: dict[str, FakeMetric]) -> Heartbeat:
    """A heartbeat that has written once and writes again only when the test calls it."""
    heartbeat = Heartbeat(monitored, metrics, period_s=1e6)
    assert metrics[BEATS].written.wait(TIMEOUT_S)
    return heartbeat


class Monitored:
    """A fake engine and a heartbeat that the test drives; its first beat is the thread's own."""

    def __init__(self) -> None:
        self.engine = FakeEngine()
        self.metrics = {name: FakeMetric(name) for name in (*COUNTERS, *GAUGES)}
        self.heartbeat = started(self.engine, self.metrics)

    def beat(self) -> float:
        self.heartbeat.beat()
        return self.metrics[BEATS].value


def test_every_figure_is_one_of_the_engines() -> None:
    assert {*COUNTERS, *GAUGES} - {BEATS} <= set(vars(EngineMetrics()))


def test_idle_engine_beats() -> None:
    monitored = Monitored()
    assert [monitored.beat(), monitored.beat()] == [2, 3]


def test_figures_are_written_at_once() -> None:
    engine = FakeEngine(EngineMetrics(slots=4))
    metrics = {name: FakeMetric(name) for name in (*COUNTERS, *GAUGES)}
    heartbeat = Heartbeat(engine, metrics, period_s=1e6)
    assert metrics["slots"].written.wait(TIMEOUT_S)
    heartbeat.close()
    assert metrics["slots"].value == 4


def test_working_engine_beats_while_it_steps_and_not_when_it_hangs() -> None:
    monitored = Monitored()
    monitored.engine.is_asleep = False
    monitored.engine.metrics.steps = 7
    assert monitored.beat() == 2
    assert monitored.beat() == 2, "it has work and took no step"
    monitored.engine.metrics.steps = 8
    assert monitored.beat() == 3


def test_session_beats_between_its_runs_and_after_each() -> None:
    session = SessionStats()
    metrics = {name: FakeMetric(name) for name in REPORTED}
    heartbeat = started(session, metrics)
    with session.run(5):
        for _ in range(3):
            heartbeat.beat()
        assert metrics[BEATS].value == 1, "it hangs in a run"
        assert metrics["rows_in_use"].value == 5
    with pytest.raises(ValueError, match="broken"), session.run(1):
        raise ValueError("broken")
    with session.run(1):
        heartbeat.beat()
        assert metrics[BEATS].value == 2, "it runs, and has ended others since"
    heartbeat.beat()
    heartbeat.close()
    assert metrics["steps"].value == 3
    assert metrics["rows_in_use"].value == 0


def test_gauges_rise_and_fall_with_the_engine() -> None:
    monitored = Monitored()
    metrics = monitored.engine.metrics
    metrics.rows_in_use, metrics.state_bytes, metrics.step_seconds = 5, 4096, 0.25
    monitored.beat()
    metrics.rows_in_use, metrics.state_bytes = 0, 1024
    monitored.beat()
    values = {name: metric.value for name, metric in monitored.metrics.items()}
    assert values["rows_in_use"] == 0
    assert values["state_bytes"] == 1024
    assert values["step_seconds"] == 0.25


def test_thread_writes_until_it_is_closed() -> None:
    metrics = {name: FakeMetric(name) for name in (*COUNTERS, *GAUGES)}
    heartbeat = Heartbeat(FakeEngine(), metrics, period_s=0.001)
    assert metrics[BEATS].written.wait(TIMEOUT_S)
    heartbeat.close()
    last = metrics[BEATS].value
    assert not heartbeat._thread.is_alive()
    assert metrics[BEATS].value == last


def test_writes_continue_after_a_failed_one() -> None:
    class Broken(FakeMetric):
        def increment(self, value: float) -> None:
            super().increment(0.0)
            raise RuntimeError("Triton is busy")

    metrics = {name: FakeMetric(name) for name in (*COUNTERS, *GAUGES)}
    metrics["slots"] = Broken("slots")
    engine = FakeEngine(EngineMetrics())
    engine.metrics.slots = 3
    heartbeat = Heartbeat(engine, metrics, period_s=0.001)
    for _ in range(2):
        assert metrics["slots"].written.wait(TIMEOUT_S)
        metrics["slots"].written.clear()
    heartbeat.close()


def exposition(
    model: str, incarnation: int, pid: int = 7, version: int = 3, **figures: float
) -> str:
    series = labels(model, str(version), str(incarnation), pid)
    inside = ",".join(f'{name}="{value}"' for name, value in series.items())
    return "".join(f"{PREFIX}{name}{{{inside}}} {value}\n" for name, value in figures.items())


def test_stats_are_those_of_the_newest_process() -> None:
    text = (
        "# HELP triptych_engine_beats Moments\n# TYPE triptych_engine_beats counter\n"
        'nv_inference_count{model="a",version="3"} 7\n'
        + exposition("a", 10, beats=4, rows_in_use=2)
        + exposition("a", 9, beats=900, waiting=5)
        + exposition("b", 0, beats=1e6, rows_in_use=0, waiting=0)
    )
    stats = read_engine_stats(text)
    assert set(stats) == {"a", "b"}
    assert (stats["a"].incarnation, stats["a"].beats) == (10, 4)
    assert stats["a"].figures == {"beats": 4, "rows_in_use": 2}
    assert stats["a"].is_busy
    assert not stats["b"].is_busy


def test_figures_of_several_processes_are_summed_and_their_beats_are_kept_apart() -> None:
    text = exposition("a", 1, 70, beats=4, rows_in_use=0, steps=3)
    text += exposition("a", 1, 71, beats=9, rows_in_use=2, steps=5)
    stats = read_engine_stats(text)["a"]
    assert stats.figures == {"beats": 13, "rows_in_use": 2, "steps": 8}
    assert stats.process_beats == {70: 4, 71: 9}
    assert stats.is_busy


def test_stats_of_one_version_leave_out_processes_of_others() -> None:
    text = exposition("a", 1, 70, version=3, beats=4, rows_in_use=2)
    text += exposition("a", 1, 71, version=4, beats=9, rows_in_use=0)
    stats = read_engine_stats(text)["a"]
    assert stats.of_version(4).process_beats == {71: 9}
    assert not stats.of_version(4).is_busy
    assert stats.of_version(3).is_busy
    assert stats.of_version(5).figures == {}
    assert stats.of_processes({70}).process_beats == {70: 4}


def test_metrics_without_our_series_are_no_stats() -> None:
    assert read_engine_stats("nv_gpu_utilization 0\n") == {}


def run(*arguments: str | Path, temporary: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "serving.probe", *arguments],
        env={**os.environ, "TMPDIR": str(temporary or tempfile.gettempdir())},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def suspend(pid: int) -> None:
    """SIGSTOP, until no thread of the process runs any more."""
    os.kill(pid, signal.SIGSTOP)
    threads = list(Path(f"/proc/{pid}/task").glob("*/stat"))
    while {thread.read_text().rpartition(")")[2].split()[0] for thread in threads} != {"T"}:
        time.sleep(0.001)


@pytest.mark.integration
def test_triton_without_a_model_is_alive_and_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with brief_server(settings(tmp_path)) as server:
        socket = server.http_socket
        assert socket in Path(tempfile.gettempdir()).glob(probe.HTTP_SOCKETS)
        assert probe.problem(socket) == "no model is loaded"
        assert probe.death(socket) is None
        publish_times(tmp_path, "twice", 2)
        server.load("twice")
        assert probe.problem(socket) is None
        assert run(socket).returncode == run("--live", socket).returncode == 0
        assert run().returncode == run("--live").returncode == 0
        assert server.pid is not None
        monkeypatch.setattr(probe, "TIMEOUT_S", 0.3)
        suspend(server.pid)
        assert "timed out" in (probe.death(socket) or "it lives")
        assert "timed out" in (probe.problem(socket) or "it is ready")
        os.kill(server.pid, signal.SIGCONT)  # a stopped process does not end by SIGTERM


@pytest.mark.parametrize(("flags", "word"), [((), "ready"), (("--live",), "live")])
def test_no_response_is_one_line_and_exit_code_1(flags: tuple[str, ...], word: str) -> None:
    done = run(*flags, "/nowhere/http")
    assert done.returncode == 1
    assert done.stderr.startswith(f"not {word}: no response from /nowhere/http: ")
    assert done.stderr.count("\n") == 1


def test_supervisor_without_a_server_is_alive_and_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / probe.HTTP_SOCKETS.replace("*", "of_a_killed_one")
    left.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as ended:
        ended.bind(str(left))
    assert run("--live", temporary=tmp_path).returncode == 1
    with contextlib.closing(ControlSocket(tmp_path)):
        assert run("--live", temporary=tmp_path).returncode == 0
        assert run(temporary=tmp_path).returncode == 1
    assert run("--live", temporary=tmp_path).returncode == 1
