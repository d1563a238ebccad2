"""The probes of a Triton container."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from serving import probe
from serving.triton.control_socket import ControlSocket
from tests.serving.triton.tiny import brief_server, publish_times, settings


def run(*arguments: str | Path, temporary: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "serving.probe", *arguments],
        env={**os.environ, "TMPDIR": str(temporary or tempfile.gettempdir())},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def suspend(pid: int) -> None:
    """SIGSTOP, until no thread of the process runs any more."""
    os.kill(pid, signal.SIGSTOP)
    threads = list(Path(f"/proc/{pid}/task").glob("*/stat"))
    while {thread.read_text().rpartition(")")[2].split()[0] for thread in threads} != {"T"}:
        time.sleep(0.001)


@pytest.mark.integration
def test_triton_without_a_model_is_alive_and_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with brief_server(settings(tmp_path)) as server:
        socket = server.http_socket
        assert socket in Path(tempfile.gettempdir()).glob(probe.HTTP_SOCKETS)
        assert probe.problem(socket) == "no model is loaded"
        assert probe.death(socket) is None
        publish_times(tmp_path, "twice", 2)
        server.load("twice")
        assert probe.problem(socket) is None
        assert run(socket).returncode == run("--live", socket).returncode == 0
        assert run().returncode == run("--live").returncode == 0
        assert server.pid is not None
        monkeypatch.setattr(probe, "TIMEOUT_S", 0.3)
        suspend(server.pid)
        assert "timed out" in (probe.death(socket) or "it lives")
        assert "timed out" in (probe.problem(socket) or "it is ready")
        os.kill(server.pid, signal.SIGCONT)  # a stopped process does not end by SIGTERM


@pytest.mark.parametrize(("flags", "word"), [((), "ready"), (("--live",), "live")])
def test_no_response_is_one_line_and_exit_code_1(flags: tuple[str, ...], word: str) -> None:
    done = run(*flags, "/nowhere/http")
    assert done.returncode == 1
    assert done.stderr.startswith(f"not {word}: no response from /nowhere/http: ")
    assert done.stderr.count("\n") == 1


def test_supervisor_without_a_server_is_alive_and_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / probe.HTTP_SOCKETS.replace("*", "of_a_killed_one")
    left.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as ended:
        ended.bind(str(left))
    assert run("--live", temporary=tmp_path).returncode == 1
    with contextlib.closing(ControlSocket(tmp_path)):
        assert run("--live", temporary=tmp_path).returncode == 0
        assert run(temporary=tmp_path).returncode == 1
    assert run("--live", temporary=tmp_path).returncode == 1
