"""Children live and die together, and a launched program ends with its thread."""

from __future__ import annotations

import os
import re
import select
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from serving.batch import local_workers
from serving.commands import serve
from serving.gateway.server import worker_process
from serving.process_pool import process
from serving.processes.launcher import launch_command
from serving.tensorrt import plans
from tests.serving.test_process_pool import is_gone
from tests.serving.triton.tiny import wait_until

CHILD = """
import os, pathlib, signal, sys
def stop(*_):
    pathlib.Path(sys.argv[1] + ".stopped").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
while True:
    signal.pause()
"""
PARENT = """
import pathlib, sys
from serving.commands.serve import Processes
from triptych.errors import TriptychError
folder = pathlib.Path(sys.argv[1])
child = {child!r}
commands = {{name: [sys.executable, "-c", child, str(folder / name)] for name in ("one", "two")}}
def problem():
    is_up = all((folder / name).exists() and (folder / name).read_text() for name in commands)
    return None if is_up else "not up"
try:
    sys.exit(Processes(commands).run(problem, lambda: print("ready", flush=True)))
except KeyboardInterrupt:
    sys.exit(130)
except TriptychError as error:
    sys.exit(str(error))
"""


IGNORING = ("sh", "-c", 'trap "" HUP INT TERM; exec "$@"', "sh")
"""Starts a program as nohup and scripts do, and as one that ignores SIGTERM, too."""


@contextmanager
def started(
    script: str, folder: Path, start: Sequence[str] = ()
) -> Iterator[subprocess.Popen[str]]:
    """A process with two children, which are up.

    Args:
        start: What starts it.
    """
    command, pipe = [*start, sys.executable, "-c", script, str(folder)], subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)
    try:
        assert select.select([process.stdout], [], [], 20)[0], "never ready"
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def parent(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """Its parameter is what starts it."""
    script = PARENT.format(child=CHILD)
    with started(script, tmp_path, getattr(request, "param", ())) as process:
        yield process


def child(folder: Path, name: str) -> int:
    return int((folder / name).read_text())


def assert_all_stopped(folder: Path) -> None:
    for name in ("one", "two"):
        assert is_gone(child(folder, name))
        assert (folder / f"{name}.stopped").exists(), "was killed before it could stop"


@pytest.mark.parametrize("parent", [(), IGNORING], ids=["", "ignored"], indirect=True)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_stops_every_child_in_peace(
    parent: subprocess.Popen[str], tmp_path: Path, number: signal.Signals, code: int
) -> None:
    parent.send_signal(number)
    assert parent.wait(20) == code
    assert_all_stopped(tmp_path)


def test_one_child_dead_stops_the_other(parent: subprocess.Popen[str], tmp_path: Path) -> None:
    os.kill(child(tmp_path, "one"), signal.SIGKILL)
    assert parent.wait(20) == 1
    assert parent.stderr.read() == "one ended (killed by SIGKILL); stopped all\n"
    assert is_gone(child(tmp_path, "two"))
    assert (tmp_path / "two.stopped").exists()


def test_slow_start_says_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serve, "LATE_S", 0.15)
    problems = iter(["one is not loaded"] * 2 + ["two is not loaded"] * 2 + [None])
    command = [sys.executable, "-c", "import signal; signal.pause()"]
    processes = serve.Processes({"one": command})
    assert processes.run(lambda: next(problems), lambda: os.kill(os.getpid(), signal.SIGTERM)) == 0
    lines = capfd.readouterr().err.splitlines()
    assert [line.partition(": ")[2] for line in lines] == ["one is not loaded", "two is not loaded"]
    assert lines[0].startswith("not ready after ")


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
def test_even_a_killed_parent_leaves_no_orphan(
    parent: subprocess.Popen[str], tmp_path: Path
) -> None:
    parent.kill()
    parent.wait(20)
    wait_until(lambda: all(is_gone(child(tmp_path, name)) for name in ("one", "two")))
    assert_all_stopped(tmp_path)


@pytest.mark.integration
def test_a_second_signal_does_not_wait_for_long(
    parent: subprocess.Popen[str], tmp_path: Path
) -> None:
    os.kill(child(tmp_path, "two"), signal.SIGSTOP)  # cannot answer SIGTERM
    parent.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        parent.wait(0.5)
    parent.send_signal(signal.SIGINT)
    assert parent.wait(20) == 130
    assert all(is_gone(child(tmp_path, name)) for name in ("one", "two"))


STUBBORN = """
import os, pathlib, signal, sys
asked = 0
def stop(*_):
    global asked
    asked += 1
    if asked == 2:
        pathlib.Path(sys.argv[1] + ".stopped").touch()
        sys.exit(0)
    pathlib.Path(sys.argv[1] + ".asked").touch()
signal.signal(signal.SIGTERM, stop)
pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
while True:
    signal.pause()
"""


def test_a_second_signal_reaches_a_child_that_is_finishing_its_work(tmp_path: Path) -> None:
    with started(PARENT.format(child=STUBBORN), tmp_path) as process:
        process.terminate()
        wait_until((tmp_path / "two.asked").exists)
        process.terminate()
        assert process.wait(30) == 0
        assert_all_stopped(tmp_path)


DEAF = """
import faulthandler, os, pathlib, signal, sys, time
faulthandler.register(signal.SIGUSR2)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def hangs():
    pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
    while True:
        time.sleep(60)
hangs()
"""


def test_a_child_that_does_not_stop_is_reported_and_says_where_it_hangs(tmp_path: Path) -> None:
    script = PARENT.format(child=DEAF).replace(
        "folder =", "import serving.commands.serve as p; p.STOP_TIMEOUT_S = 0.3\nfolder =", 1
    )
    with started(script, tmp_path) as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 1
        errors = process.stderr.read()
    assert errors.endswith("two, one did not stop in time: killed\n")
    assert errors.count(" in hangs\n") == 2
    assert all(is_gone(child(tmp_path, name)) for name in ("one", "two"))


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
