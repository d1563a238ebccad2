"""A launched program ends with the thread that started it, and can keep its files to its user."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from serving.processes.launcher import launch_command

WAITS = [sys.executable, "-c", "print('up', flush=True); import time; time.sleep(600)"]
WRITES = """
import os, sys
descriptor = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR, 0o666)
os.fchmod(descriptor, 0o644)
"""


def test_program_takes_the_place_of_the_launcher() -> None:
    program = "import os, sys; print(os.getpid(), *sys.argv[1:]); sys.exit(7)"
    command = launch_command([sys.executable, "-c", program, "a b", "--flag"])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        output, _ = started.communicate(timeout=30)
    assert output == f"{started.pid} a b --flag\n"
    assert started.returncode == 7


def test_program_gets_sigterm_when_the_thread_that_started_it_ends() -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        child = subprocess.Popen(launch_command(WAITS), stdout=subprocess.PIPE)
        started.append(child)
        assert child.stdout.readline() == b"up\n"

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    with started[0] as child:
        try:
            assert child.wait(30) == -signal.SIGTERM
        finally:
            child.kill()


def test_program_does_not_start_when_its_parent_has_ended() -> None:
    command = launch_command([sys.executable, "-c", "print('started')"])
    command[command.index(str(os.getpid()))] = str(os.getppid())  # another's process id
    done = subprocess.run(command, capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (1, b"")


@pytest.mark.parametrize(("is_private", "mode"), [(True, 0o600), (False, 0o644)])
def test_files_are_closed_to_other_users_whatever_the_program_does(
    tmp_path: Path, *, is_private: bool, mode: int
) -> None:
    file = tmp_path / "region"
    command = launch_command([sys.executable, "-c", WRITES, str(file)], is_private=is_private)
    subprocess.run(command, check=True, timeout=30)
    assert stat.S_IMODE(file.stat().st_mode) == mode
