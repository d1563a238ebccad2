"""Processes are bounded, fair, killed when nothing waits for them, and replaced."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from inference.errors import InvalidRequest, PayloadTooLarge, TooLong
from inference.processing.terms import composed
from serving.process_pool.pool import ProcessPool
from serving.process_pool.process import WorkLimits
from tests.serving.waiting import until


def sleep(*arguments: object) -> None:
    """Writes its process id into the file whose name ends the bytes among its arguments, and stays.

    The name follows a zero byte.
    """
    content = next(one for one in arguments if isinstance(one, bytes))
    file = Path(content.rpartition(b"\0")[2].decode())
    file.with_suffix(".new").write_text(str(os.getpid()))
    file.with_suffix(".new").rename(file)
    time.sleep(3600)


LIMITS = WorkLimits(memory_bytes=200_000_000, processor_s=1)
WAIT_S = 30


def is_gone(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.fixture
async def pool() -> AsyncIterator[ProcessPool]:
    made = ProcessPool(2, LIMITS)
    yield made
    made.close()


async def test_results_and_errors_come_back(pool: ProcessPool) -> None:
    assert await pool.run(divmod, 7, 3, expected_s=0) == (2, 1)
    with pytest.raises(InvalidRequest, match="combining marks") as raised:
        await pool.run(composed, "a" + "\u0301" * 31, "texts.3", expected_s=0)
    assert raised.value.field == "texts.3"
    with pytest.raises(ZeroDivisionError) as error:
        await pool.run(divmod, 7, 0, expected_s=0)
    assert any("Traceback" in note for note in error.value.__notes__)  # where it was


async def test_processes_start_before_they_are_needed(pool: ProcessPool) -> None:
    pool.start()
    await until(lambda: len(pool.pids) == 2)
    assert await pool.run(os.getpid, expected_s=0) in pool.pids


async def test_cancelled_work_is_killed_and_its_process_replaced(pool: ProcessPool) -> None:
    pid = await pool.run(os.getpid, expected_s=0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await pool.run(time.sleep, 3600, expected_s=0)
    assert is_gone(pid)  # the work has ended when its caller is told
    assert await pool.run(os.getpid, expected_s=0) != pid


async def test_short_work_may_end_though_its_caller_has_left(pool: ProcessPool) -> None:
    pid = await pool.run(os.getpid, expected_s=0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await pool.run(time.sleep, 0.05, expected_s=0)
    assert await pool.run(os.getpid, expected_s=0) == pid


async def test_work_that_waits_is_cancelled_at_once(pool: ProcessPool) -> None:
    async with asyncio.TaskGroup() as group:
        running = group.create_task(pool.run(time.sleep, 3600, expected_s=9))
        waiting = group.create_task(pool.run(time.sleep, 3600, expected_s=9))
        await until(lambda: len(pool._waiting) == 1)
        waiting.cancel()
        await asyncio.wait([waiting], timeout=WAIT_S)
        assert pool._waiting == []
        running.cancel()
    assert await pool.run(divmod, 7, 3, expected_s=9) == (2, 1)


async def test_memory_is_bounded(pool: ProcessPool) -> None:
    with pytest.raises(PayloadTooLarge, match="200000000 bytes of memory"):
        await pool.run(bytes, 300_000_000, expected_s=0)
    assert len(await pool.run(bytes, 50_000_000, expected_s=0)) == 50_000_000


async def test_processor_time_is_bounded(pool: ProcessPool) -> None:
    with pytest.raises(PayloadTooLarge, match="1 s of processor time"):
        await pool.run(sum, range(10**12), expected_s=0)
    assert await pool.run(divmod, 7, 3, expected_s=0) == (2, 1)


async def test_processor_time_is_of_each_work(pool: ProcessPool) -> None:
    pids = set()
    for _ in range(5):  # more than the limit together
        await pool.run(sum, range(20_000_000), expected_s=0)
        pids.add(await pool.run(os.getpid, expected_s=0))
    assert len(pids) == 1


async def test_process_that_ends_refuses_its_work_alone(pool: ProcessPool) -> None:
    with pytest.raises(InvalidRequest, match="ended a process"):
        await pool.run(os._exit, 3, expected_s=0)
    pid = await pool.run(os.getpid, expected_s=0)
    os.kill(pid, signal.SIGKILL)
    await until(lambda: is_gone(pid))
    assert await pool.run(divmod, 7, 3, expected_s=0) == (2, 1)


async def test_long_work_leaves_a_process_to_short_work(pool: ProcessPool) -> None:
    async with asyncio.TaskGroup() as group:
        long = [group.create_task(pool.run(time.sleep, 3600, expected_s=9)) for _ in range(5)]
        await until(lambda: len(pool._waiting) == 4)
        assert await pool.run(divmod, 7, 3, expected_s=0.01) == (2, 1)
        for task in long:
            task.cancel()


async def test_keys_have_equal_turns_and_the_shortest_work_is_first() -> None:
    pool = ProcessPool(3, LIMITS)
    order: list[str] = []

    async def work(name: str, key: str, expected_s: float) -> None:
        await pool.run(divmod, 1, 1, expected_s=expected_s, key=key)
        order.append(name)

    try:
        async with asyncio.TaskGroup() as group:
            both = [
                group.create_task(pool.run(time.sleep, 3600, expected_s=1, key=key))
                for key in ("b", "c")
            ]
            await until(lambda: len(pool._running) == 2)
            for name, key, expected_s in (
                ("b, long", "b", 50.0),
                ("b, short", "b", 5.0),
                ("a, long", "a", 40.0),
                ("a, short", "a", 20.0),
            ):
                group.create_task(work(name, key, expected_s))
            await until(lambda: len(pool._waiting) == 4)
            both[1].cancel()  # leaves one process, while a piece of b's work goes on
            await until(lambda: len(order) == 4)
            both[0].cancel()
    finally:
        pool.close()
    assert order == ["a, short", "a, long", "b, short", "b, long"]


async def test_processes_inherit_nothing_and_ignore_the_terminal(
    pool: ProcessPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIPTYCH_API_KEY", "secret")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.set_inheritable(True)
        pid = await pool.run(os.getpid, expected_s=0)
        theirs = [str(one.readlink()) for one in Path(f"/proc/{pid}/fd").iterdir()]
        assert len([one for one in theirs if one.startswith("socket:")]) == 1
        assert str(Path(f"/proc/self/fd/{listening.fileno()}").readlink()) not in theirs
    assert b"TRIPTYCH" not in Path(f"/proc/{pid}/environ").read_bytes()
    assert await pool.run(signal.getsignal, signal.SIGINT, expected_s=0) == signal.SIG_IGN


@pytest.mark.integration
async def test_processes_end_with_their_parent() -> None:
    program = """
import asyncio, os, time
from serving.process_pool.pool import ProcessPool
from serving.process_pool.process import WorkLimits
async def main():
    pool = ProcessPool(2, WorkLimits(10**9, 600))
    print(await pool.run(os.getpid, expected_s=0), flush=True)
    await pool.run(sum, range(10**12), expected_s=0)
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        pid = int(await asyncio.to_thread(parent.stdout.readline))
        assert not is_gone(pid)
        parent.kill()
    await until(lambda: is_gone(pid))


def test_errors_keep_their_fields() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(TooLong("long", field="q", retry_after_s=2)))
    assert (error.message, error.field, error.retry_after_s) == ("long", "q", 2)
