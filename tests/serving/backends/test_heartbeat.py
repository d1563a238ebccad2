"""The heartbeat: it moves while an engine or a session is well, and only then."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest

from serving.backends.heartbeat import Heartbeat
from serving.backends.onnxruntime.session_stats import REPORTED, SessionStats
from serving.engine.metrics import EngineMetrics
from serving.engine_stats import read_engine_stats
from serving.heartbeat import BEATS, COUNTERS, GAUGES, PREFIX, labels

PATIENCE_S = 20


@dataclass
class FakeEngine:
    metrics: EngineMetrics = field(default_factory=EngineMetrics)
    is_asleep: bool = True


class FakeMeter:
    """Adds up; `pb_utils.Metric` refuses a counter's decrease."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.value = 0.0
        self.written = threading.Event()

    def increment(self, value: float) -> None:
        assert value >= 0 or self.name in GAUGES
        self.value += value
        self.written.set()


class Watched:
    """A heart that beats when the test says so."""

    def __init__(self) -> None:
        self.engine = FakeEngine()
        self.meters = {name: FakeMeter(name) for name in (*COUNTERS, *GAUGES)}
        self.heart = Heartbeat(self.engine, self.meters, period_s=1e6)

    def beat(self) -> float:
        self.heart.beat()
        return self.meters[BEATS].value


def test_every_figure_is_one_of_the_engines() -> None:
    assert {*COUNTERS, *GAUGES} - {BEATS} <= set(vars(EngineMetrics()))


def test_idle_engine_beats() -> None:
    watched = Watched()
    assert [watched.beat(), watched.beat()] == [1, 2]


def test_working_engine_beats_while_it_steps_and_stands_still_when_it_hangs() -> None:
    watched = Watched()
    watched.engine.is_asleep = False
    watched.engine.metrics.steps = 7
    assert watched.beat() == 1
    assert watched.beat() == 1, "it has work and took no step"
    watched.engine.metrics.steps = 8
    assert watched.beat() == 2


def test_session_beats_between_its_runs_and_after_each() -> None:
    session = SessionStats()
    meters = {name: FakeMeter(name) for name in REPORTED}
    heart = Heartbeat(session, meters, period_s=1e6)
    heart.beat()
    with session.run(5):
        for _ in range(3):
            heart.beat()
        assert meters[BEATS].value == 1, "it hangs in a run"
        assert meters["rows_in_use"].value == 5
    with pytest.raises(ValueError, match="broken"), session.run(1):
        raise ValueError("broken")
    with session.run(1):
        heart.beat()
        assert meters[BEATS].value == 2, "it runs, and has ended others since"
    heart.beat()
    heart.close()
    assert meters["steps"].value == 3
    assert meters["rows_in_use"].value == 0


def test_figures_follow_the_engine_up_and_down() -> None:
    watched = Watched()
    metrics = watched.engine.metrics
    metrics.rows_in_use, metrics.state_bytes, metrics.step_seconds = 5, 4096, 0.25
    watched.beat()
    metrics.rows_in_use, metrics.state_bytes = 0, 1024
    watched.beat()
    values = {name: meter.value for name, meter in watched.meters.items()}
    assert values["rows_in_use"] == 0
    assert values["state_bytes"] == 1024
    assert values["step_seconds"] == 0.25


def test_thread_writes_until_it_is_closed() -> None:
    meters = {name: FakeMeter(name) for name in (*COUNTERS, *GAUGES)}
    heart = Heartbeat(FakeEngine(), meters, period_s=0.001)
    assert meters[BEATS].written.wait(PATIENCE_S)
    heart.close()
    last = meters[BEATS].value
    assert not heart._thread.is_alive()
    assert meters[BEATS].value == last


def test_a_write_that_fails_is_not_the_last() -> None:
    class Broken(FakeMeter):
        def increment(self, value: float) -> None:
            super().increment(0.0)
            raise RuntimeError("Triton is busy")

    meters = {name: FakeMeter(name) for name in (*COUNTERS, *GAUGES)}
    meters["slots"] = Broken("slots")
    engine = FakeEngine(EngineMetrics())
    engine.metrics.slots = 3
    heart = Heartbeat(engine, meters, period_s=0.001)
    for _ in range(2):
        assert meters["slots"].written.wait(PATIENCE_S)
        meters["slots"].written.clear()
    heart.close()


def exposition(model: str, incarnation: int, pid: int = 7, **figures: float) -> str:
    series = labels(model, "3", str(incarnation), pid)
    inside = ",".join(f'{name}="{value}"' for name, value in series.items())
    return "".join(f"{PREFIX}{name}{{{inside}}} {value}\n" for name, value in figures.items())


def test_stats_are_those_of_the_newest_incarnation() -> None:
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


def test_no_series_of_ours_are_no_stats() -> None:
    assert read_engine_stats("nv_gpu_utilization 0\n") == {}
