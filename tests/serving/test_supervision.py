"""A gateway that drains is waited for; every other program that has the port is not."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psutil
import pytest

from serving import draining
from serving.draining import SHUTTING_DOWN, await_drained, readiness
from serving.ports import free_ports
from serving.processes.process_table import (
    children,
    is_running_child,
    running_with,
    session_members,
)
from serving.processes.supervision import back_off_s, end_session, exit_reason, handle_signals
from tests.programs import run_program
from tests.serving.gateway.conftest import Gateway
from tests.serving.triton.tiny import wait_until

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
        assert end_session(started, lambda: False), "it has ended"


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


async def test_signals_are_handled_until_the_end_of_the_block(tmp_path: Path) -> None:
    seen: list[str] = []
    both = asyncio.Event()

    def hear(name: str) -> None:
        seen.append(name)
        if len(seen) == 2:
            both.set()

    with handle_signals({signal.SIGUSR1: lambda: hear("one"), signal.SIGUSR2: lambda: hear("two")}):
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR2)
        async with asyncio.timeout(10):
            await both.wait()
    assert sorted(seen) == ["one", "two"]
    os.kill(os.getpid(), signal.SIGUSR1)  # ignored: it would end the tests
    assert sorted(seen) == ["one", "two"]


ENDING = """
import asyncio, signal, tempfile, time
from serving.processes.supervision import STOP_SIGNALS, handle_signals

async def run():
    stopping = asyncio.Event()
    with handle_signals(dict.fromkeys(STOP_SIGNALS, stopping.set)):
        await stopping.wait()

signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
with tempfile.TemporaryDirectory() as folder:
    print(folder, flush=True)
    time.sleep(0.2)
    asyncio.run(run())
    print("ends", flush=True)
    time.sleep(0.2)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_before_and_after_the_block_leave_no_files(number: signal.Signals) -> None:
    program = [sys.executable, "-c", ENDING]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        folder = Path(started.stdout.readline().strip())
        assert folder.is_dir()
        started.send_signal(number)
        assert started.stdout.readline() == "ends\n"
        started.send_signal(number)
        assert started.wait(10) == 0
    assert not folder.exists()


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
    assert run_program(sys.executable, "-c", REAPING) == "done\n"


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
    wait_until(lambda: all(psutil.Process(each.pid).cmdline() for each in started))


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
    assert children(ended.pid) == {}


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


def test_members_of_a_session_are_listed_until_they_end() -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, start_new_session=True
    ) as leader:
        wait_until(lambda: len(session_members(leader.pid)) == 2)
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


@contextmanager
def answering(status: int, message: str, most: int) -> Iterator[int]:
    """A server that closes its port after so many requests; yields the port."""
    body = b'{"error": {"type": "unavailable", "message": "%s"}}' % message.encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)

    def serve() -> None:
        with server:
            for _ in range(most):
                server.handle_request()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        while thread.is_alive():
            with socket.socket() as last:
                last.connect_ex(server.server_address[:2])
            thread.join(0.05)


def ports(http: int) -> dict[str, int]:
    return {"http": http, "grpc": 0}


def test_gateway_that_shuts_down_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "_POLL_S", 0.01)
    said: list[str] = []
    with answering(503, f"not ready: {SHUTTING_DOWN}", 4) as port:
        await_drained("127.0.0.1", ports(port), said.append)
        assert free_ports("127.0.0.1", ports(port))["http"] == port
        assert said == [f"waiting for a gateway that is shutting down on 127.0.0.1:{port}"]


@pytest.mark.parametrize(
    ("status", "message"), [(503, "not ready: a is not loaded"), (200, ""), (404, "no such path")]
)
def test_other_programs_are_not_waited_for(status: int, message: str) -> None:
    said: list[str] = []
    with answering(status, message, 1) as port:
        await_drained("127.0.0.1", ports(port), said.append)
    await_drained("127.0.0.1", ports(0), said.append)
    await_drained("127.0.0.1", ports(port), said.append)
    assert said == []


def test_reason_of_a_gateway_is_read() -> None:
    with answering(503, "not ready: a is not loaded", 1) as port:
        assert readiness(f"127.0.0.1:{port}") == "not ready: a is not loaded"
    with answering(200, "", 1) as port:
        assert readiness(f"127.0.0.1:{port}") is None


async def test_gateway_says_that_it_drains() -> None:
    gateway = Gateway([])
    gateway.service.is_draining = True
    response = await gateway.get("/ready", status=503)
    assert SHUTTING_DOWN in response.json()["error"]["message"]
