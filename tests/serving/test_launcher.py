"""A launched program ends with the thread that started it, and can keep its files to its user."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from serving.batch import local_workers
from serving.commands import serve
from serving.gateway.server import worker_process
from serving.process_pool import process
from serving.processes.launcher import launch_command
from serving.tensorrt import plans

ROOT = Path(__file__).parents[2]
PROGRAMS = {
    "triptych": serve.PROGRAM,
    "helper": process._PROGRAM,
    "worker": worker_process._PROGRAM,
    "batch": local_workers._PROGRAM,
    "tensorrt": plans.PROGRAM,
}
NAMES = ("inference", "numpy", "random", "serving", "triptych", "types", "typing")
WAITS = [sys.executable, "-c", "print('up', flush=True); import time; time.sleep(600)"]
WRITES = """
import os, sys
descriptor = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR, 0o666)
os.fchmod(descriptor, 0o644)
"""


@pytest.mark.integration
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_no_child_imports_from_the_current_folder(program: tuple[str, ...], tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text("open('imported', 'w'); raise SystemExit(7)")
    ended = subprocess.run(
        [*program, "--help"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
    )
    assert not (tmp_path / "imported").exists()
    assert ended.returncode != 7


def test_children_that_run_a_module_are_started_in_one_way() -> None:
    sources = [
        path for name in ("serving", "inference", "export") for path in (ROOT / name).rglob("*.py")
    ]
    sources += (ROOT / "clients" / "triptych").rglob("*.py")
    pattern = re.compile(r"sys\.executable,\s*[\"']-m[\"']")
    assert len(sources) > 300
    assert [path for path in sources if pattern.search(path.read_text())] == []


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
