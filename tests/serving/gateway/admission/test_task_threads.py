"""Work in threads ends with its request, and large work delays no other."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator

import pytest

from inference.processing.cancellation import Abandoned, check_abandoned
from serving.gateway.admission.task_threads import LARGE, TaskThreads

WAIT_S = 30


@pytest.fixture
def threads() -> Iterator[TaskThreads]:
    made = TaskThreads()
    yield made
    made.close()


async def test_work_that_nothing_waits_for_ends_before_its_caller(threads: TaskThreads) -> None:
    started, ended = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        try:
            while not ended.wait(0.001):
                check_abandoned()
        except Abandoned:
            ended.set()
            raise

    task = asyncio.create_task(threads.run(None, work))
    await asyncio.to_thread(started.wait, WAIT_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_work_of_a_request_that_ends_twice_logs_nothing(threads: TaskThreads) -> None:
    """A dialect's time limit and the deadline may both cancel it, one after the other."""
    complaints: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: complaints.append(about))
    started, release = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        release.wait(WAIT_S)
        check_abandoned()

    task = asyncio.create_task(threads.run(None, work))
    await asyncio.to_thread(started.wait, WAIT_S)
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0.01)
    with pytest.raises(asyncio.CancelledError):
        await task
    release.set()
    await threads.run(LARGE + 1, lambda: None)
    del task
    await asyncio.sleep(0.1)
    gc.collect()
    await asyncio.sleep(0)
    assert complaints == []


async def test_work_that_has_not_begun_never_does(threads: TaskThreads) -> None:
    release, begun = threading.Event(), []
    try:
        busy = [asyncio.create_task(threads.run(None, release.wait, WAIT_S)) for _ in range(64)]
        await asyncio.sleep(0)
        late = asyncio.create_task(threads.run(None, begun.append, 1))
        await asyncio.sleep(0)
        late.cancel()
        with pytest.raises(asyncio.CancelledError):
            await late
    finally:
        release.set()
    await asyncio.gather(*busy)
    assert begun == []


async def test_large_work_does_not_delay_other_work(threads: TaskThreads) -> None:
    release = threading.Event()
    try:
        large = [
            asyncio.create_task(threads.run(LARGE + 1, release.wait, WAIT_S)) for _ in range(64)
        ]
        await asyncio.sleep(0)
        async with asyncio.timeout(WAIT_S):
            assert await threads.run(LARGE, divmod, 7, 3) == (2, 1)
            assert await threads.run(None, divmod, 7, 3) == (2, 1)
    finally:
        release.set()
    await asyncio.gather(*large)


async def test_errors_come_back(threads: TaskThreads) -> None:
    with pytest.raises(ZeroDivisionError):
        await threads.run(None, divmod, 7, 0)


def test_work_outside_of_requests_goes_on() -> None:
    check_abandoned()
