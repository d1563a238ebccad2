"""Processes as the kernel lists them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

from serving.processes.process_table import (
    children,
    is_running_child,
    running_with,
    session_members,
)


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


def test_children_of_all_threads_are_listed(sleepers: list[subprocess.Popen[bytes]]) -> None:
    found = children(os.getpid())
    assert all(found[each.pid][0] == sys.executable for each in sleepers)


def test_an_ended_child_is_listed_without_arguments_until_it_is_reaped(
    sleepers: list[subprocess.Popen[bytes]],
) -> None:
    ended = sleepers[0]
    ended.kill()
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    assert children(os.getpid())[ended.pid] == ()
    ended.wait()
    assert ended.pid not in children(os.getpid())


def test_child_is_running_until_it_ends_and_only_its_own_parent_s() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        assert is_running_child(child.pid, os.getpid())
        assert not is_running_child(child.pid, 1)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie now
        assert not is_running_child(child.pid, os.getpid())
    finally:
        child.kill()
        child.wait()
    assert not is_running_child(child.pid, os.getpid())


def test_a_process_that_has_ended_has_no_children() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert children(ended.pid) == {}


def test_members_of_a_session_are_listed_until_they_end() -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, start_new_session=True
    ) as leader:
        deadline = time.monotonic() + 30
        while len(session_members(leader.pid)) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        members = session_members(leader.pid)
        (child,) = children(leader.pid)
        assert sorted(members) == sorted([leader.pid, child])
        assert os.getpid() not in members
        leader.communicate(b"\n")
        assert session_members(leader.pid) == []


def test_processes_are_found_by_an_argument_and_one_of_several(
    sleepers: list[subprocess.Popen[bytes]],
) -> None:
    wanted = f"--tag={os.getpid()}"
    program = [sys.executable, "-c", "input()", wanted, "--port=1", "a b"]
    with subprocess.Popen(program, stdin=subprocess.PIPE) as tagged:
        await_arguments([tagged])
        assert running_with(wanted, {"--port=1", "--port=2"}) == [tagged.pid]
        assert running_with(wanted, {"--port=2"}) == []
        assert running_with("a b", {wanted}) == [tagged.pid]
        tagged.communicate(b"\n")
    assert running_with(wanted, {"--port=1"}) == []
