"""Processes are ended, and started again, as every supervisor does it."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from serving.processes.process_table import session_members
from serving.processes.supervision import back_off_s, end_session, exit_reason, handle_signals

WITH_CHILD = """
import signal, subprocess, sys
{first}
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
child.wait()
"""


def leader(first: str = "") -> subprocess.Popen[bytes]:
    """A session of two processes, both running."""
    started = subprocess.Popen(
        [sys.executable, "-c", WITH_CHILD.format(first=first)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert int(started.stdout.readline())
    return started


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (0, "exit code 0"),
        (3, "exit code 3"),
        (-9, "killed by SIGKILL"),
        (-signal.SIGXCPU, "killed by SIGXCPU"),
        (-(signal.SIGRTMIN + 2), f"killed by signal {signal.SIGRTMIN + 2}"),
        (None, "exit code None"),
    ],
)
def test_reasons_are_words(code: int | None, reason: str) -> None:
    assert exit_reason(code) == reason


def test_delays_double_up_to_the_longest_however_often_a_process_ends() -> None:
    assert back_off_s(0, 0.5, 30) == 0
    assert [back_off_s(ends, 0.5, 30) for ends in range(1, 9)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert back_off_s(100_000, 0.5, 30) == 30
    assert all(
        a <= b for a, b in itertools.pairwise(back_off_s(ends, 1e-9, 1e9) for ends in range(200))
    )


def test_session_ends_with_its_leader() -> None:
    with leader() as started:
        assert end_session(started, lambda: False)
        assert started.returncode == -signal.SIGTERM
        assert session_members(started.pid) == []


def test_deaf_session_is_killed_when_its_time_is_over() -> None:
    with leader("signal.signal(signal.SIGTERM, signal.SIG_IGN)") as started:
        over_s = time.monotonic() + 0.3
        assert not end_session(started, lambda: time.monotonic() > over_s)
        assert time.monotonic() > over_s
        assert started.returncode == -signal.SIGKILL
        assert session_members(started.pid) == []


def test_stopped_process_is_killed() -> None:
    with leader() as started:
        os.kill(started.pid, signal.SIGSTOP)
        assert not end_session(started, lambda: True)
        assert session_members(started.pid) == []


@pytest.mark.parametrize("writes_stacks", [True, False])
def test_stacks_are_written_before_the_end_where_a_process_can(*, writes_stacks: bool) -> None:
    first = (
        "import faulthandler; faulthandler.register(signal.SIGUSR2)\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    )
    with leader(first) as started:
        assert not end_session(started, lambda: True, writes_stacks=writes_stacks)
        assert (b"in <module>" in started.stderr.read()) is writes_stacks


def test_process_that_has_ended_is_no_error() -> None:
    with leader() as started:
        end_session(started, lambda: False)
        assert end_session(started, lambda: False)


async def test_signals_are_handled_until_the_end_of_the_block(tmp_path: Path) -> None:
    seen: list[str] = []
    both = asyncio.Event()

    def hear(name: str) -> None:
        seen.append(name)
        if len(seen) == 2:
            both.set()

    before = signal.getsignal(signal.SIGUSR1)
    with handle_signals({signal.SIGUSR1: lambda: hear("one"), signal.SIGUSR2: lambda: hear("two")}):
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR2)
        async with asyncio.timeout(10):
            await both.wait()
    assert sorted(seen) == ["one", "two"]
    assert signal.getsignal(signal.SIGUSR1) == before


REAPING = """
import os, subprocess, sys
from serving.processes.process_table import children
from serving.processes.supervision import adopt_orphans, end_children, reap
adopt_orphans()
own = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
# A child that leaves an orphan and ends.
sleeps = "import time; time.sleep(600)"
leaves = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {sleeps!r}])"
left = subprocess.Popen([sys.executable, "-c", leaves])
os.waitid(os.P_PID, left.pid, os.WEXITED | os.WNOWAIT)
reap(except_for=own.pid)
assert left.pid not in children(os.getpid()), "a dead child is collected"
(orphan,) = children(os.getpid()).keys() - {own.pid}
own.communicate(b"\\n")
reap(except_for=-1)
end_children()
assert children(os.getpid()) == {}
assert own.returncode == 0
print("done")
"""


def test_dead_children_are_collected_and_orphans_end_with_the_supervisor() -> None:
    done = subprocess.run(
        [sys.executable, "-c", REAPING], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "done\n", done.stderr


KEEPING = """
import os, subprocess, sys
from serving.processes.supervision import reap
own = subprocess.Popen([sys.executable, "-c", "import sys; sys.exit(7)"])
os.waitid(os.P_PID, own.pid, os.WEXITED | os.WNOWAIT)
reap(except_for=own.pid)
sys.exit(own.wait())
"""


def test_exit_code_of_the_excepted_child_is_kept_for_its_owner() -> None:
    assert subprocess.run([sys.executable, "-c", KEEPING], timeout=60, check=False).returncode == 7
