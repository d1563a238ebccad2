"""No failure of a task beside requests ends it for good."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from serving.gateway.observability import background_tasks
from serving.gateway.observability.background_tasks import BackgroundTasks
from serving.gateway.observability.metrics import Metrics
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
