"""Background tasks, stalls of the event loop, and metrics."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from serving.gateway.observability import background_tasks
from serving.gateway.observability.background_tasks import BackgroundTasks
from serving.gateway.observability.metrics import Metrics
from serving.gateway.server.run_server import count_stalls, running_tasks
from tests.serving.waiting import settled, until

FAILURES = (
    OSError(13, "Permission denied", "/models"),
    TypeError("unexpected keyword"),
    asyncio.CancelledError("Channel is closed."),
    TimeoutError(),
)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_tasks, "FIRST_PAUSE_S", 0.001)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
async def tasks(metrics: Metrics) -> AsyncIterator[BackgroundTasks]:
    made = BackgroundTasks(metrics.failed_in_background)
    yield made
    await made.close()


class Task:
    """Fails as it is told, then waits for ever."""

    def __init__(self, *failures: BaseException) -> None:
        self.failures = list(failures)
        self.runs = 0
        self.is_cancelled = False

    async def run(self) -> None:
        self.runs += 1
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
async def test_a_task_that_fails_is_logged_counted_and_started_again(
    tasks: BackgroundTasks,
    metrics: Metrics,
    caplog: pytest.LogCaptureFixture,
    failure: BaseException,
) -> None:
    task = Task(failure, failure)
    tasks.start("following", task.run)
    await until(lambda: task.runs == 3)
    await settled()
    lines = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert ["following failed" in record.message for record in lines] == [True, True]
    assert all(record.exc_info for record in lines)
    assert b'triptych_background_failures_total{task="following"} 2.0' in metrics.exposition()
    assert tasks.problem is None


async def test_pauses_grow_and_are_shown(
    tasks: BackgroundTasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_tasks, "FIRST_PAUSE_S", 20.0)
    task = Task(*FAILURES)
    tasks.start("following", task.run)
    await until(lambda: tasks.problem)
    assert tasks.problem == "following failed (PermissionError)"
    assert task.runs == 1


async def test_a_task_ends_when_it_is_cancelled_whatever_it_raises_then(
    tasks: BackgroundTasks,
) -> None:
    class Stubborn(Task):
        async def run(self) -> None:
            try:
                await super().run()
            except asyncio.CancelledError:
                raise OSError("the connection is closed") from None

    for task in (Task(), Stubborn()):
        started = tasks.start("following", task.run)
        await until(lambda task=task: task.runs)
        await settled()
        started.cancel()
        await asyncio.wait([started])
        assert started.cancelled()
        assert (task.runs, task.is_cancelled) == (1, True)


async def test_a_task_that_returns_is_not_started_again(tasks: BackgroundTasks) -> None:
    runs = []

    async def run() -> None:
        runs.append(1)

    await tasks.start("watching", run)
    assert runs == [1]


async def test_close_ends_those_that_wait_to_be_started_again(
    metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_tasks, "FIRST_PAUSE_S", 20.0)
    tasks = BackgroundTasks(metrics.failed_in_background)
    waiting, running = Task(*FAILURES), Task()
    started = [tasks.start("following", one.run) for one in (waiting, running)]
    await until(lambda: tasks.problem)
    await tasks.close()
    assert all(task.cancelled() for task in started)
    assert (tasks.problem, running.is_cancelled) == (None, True)


def values(metrics: Metrics) -> tuple[float, float]:
    found = dict(
        line.rsplit(" ", 1)
        for line in metrics.exposition().decode().splitlines()
        if line.startswith("triptych_event_loop")
    )
    stalls = float(found["triptych_event_loop_stalls_total"])
    return stalls, float(found["triptych_event_loop_stalled_seconds_total"])


async def test_stalls_are_counted_and_work_that_waits_is_not() -> None:
    metrics = Metrics()
    counting = asyncio.create_task(count_stalls(metrics))
    await asyncio.sleep(0.06)
    before = values(metrics)
    for _ in range(2):
        time.sleep(0.3)
        await asyncio.sleep(0.06)
    stalls, seconds = values(metrics)
    assert stalls - before[0] == 2
    assert 0.45 < seconds - before[1] < 3
    counting.cancel()


async def _inner(event: asyncio.Event) -> None:
    await event.wait()


async def _outer(event: asyncio.Event) -> None:
    await _inner(event)


def test_each_task_is_described_down_to_what_it_waits_for() -> None:
    async def run() -> list[str]:
        event = asyncio.Event()
        tasks = [asyncio.create_task(_outer(event), name=name) for name in ("first", "second")]
        await asyncio.sleep(0)
        found = running_tasks()
        event.set()
        await asyncio.gather(*tasks)
        return found

    first, second = asyncio.run(run())
    assert first.startswith("first: _outer:")
    assert " > _inner:" in first
    assert " > Event.wait:" in first
    assert second.startswith("second: ")


def test_file_that_a_starting_worker_has_not_filled_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "counter_2.db").touch()
    assert b"triptych_workers 1.0" in Metrics(tmp_path).exposition()


def test_file_that_an_ending_worker_has_removed_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "counter_2.db").symlink_to(tmp_path / "removed")  # listed, and not there
    assert b"triptych_workers 1.0" in Metrics(tmp_path).exposition()
