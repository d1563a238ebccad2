"""The children of a process, as the supervisor lists them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from serving.triton import process
from serving.triton.process import children


@pytest.fixture
def sleepers() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Three children, the last one started by another thread."""
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    started = [subprocess.Popen(command) for _ in range(2)]
    thread = threading.Thread(target=lambda: started.append(subprocess.Popen(command)))
    thread.start()
    thread.join()
    await_arguments(started)
    yield started
    for each in started:
        each.kill()
        each.wait()


def await_arguments(started: list[subprocess.Popen[bytes]]) -> None:
    """`Popen` returns when exec closes its pipe, a moment before the kernel shows the arguments."""
    deadline = time.monotonic() + 30
    while not all(psutil.Process(each.pid).cmdline() for each in started):
        assert time.monotonic() < deadline
        time.sleep(0.001)


def pids(found: list[process.Child]) -> set[int]:
    return {child.pid for child in found}


def test_children_of_all_threads_are_listed(sleepers: list[subprocess.Popen[bytes]]) -> None:
    found = {child.pid: child for child in children(os.getpid())}
    for each in sleepers:
        assert not found[each.pid].is_zombie
        assert found[each.pid].arguments[0] == sys.executable


def test_an_ended_child_is_a_zombie_until_it_is_reaped(
    sleepers: list[subprocess.Popen[bytes]],
) -> None:
    ended = sleepers[0]
    ended.kill()
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    (zombie,) = (child for child in children(os.getpid()) if child.pid == ended.pid)
    assert zombie.is_zombie
    assert not zombie.arguments
    ended.wait()
    assert ended.pid not in pids(children(os.getpid()))


@pytest.mark.parametrize("listed", ["nothing", "an ended child"])
def test_where_the_kernels_list_may_lack_a_child_all_processes_are_read(
    sleepers: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch, listed: str
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()

    def incomplete(pid: int) -> list[int]:
        if listed == "nothing":
            raise FileNotFoundError(Path(f"/proc/{pid}/task"))
        return [ended.pid, sleepers[0].pid]

    monkeypatch.setattr(process, "_listed_children", incomplete)
    assert pids(children(os.getpid())) >= {each.pid for each in sleepers}


def test_a_process_that_has_ended_has_no_children() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert children(ended.pid) == []
