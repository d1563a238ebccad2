"""The supervisor's control socket: which folder it takes, and what it refuses."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import tempfile
import threading
from pathlib import Path

import pytest

from inference.errors import SetupError
from serving import probe
from serving.triton.control_socket import ControlSocket, send, socket_paths
from serving.triton.version_control import Command, Outcome


@pytest.fixture
def temporary(short_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files; pytest's own, `tmp_path`, is made before."""
    monkeypatch.setattr(tempfile, "tempdir", str(short_folder))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    return short_folder


def outcomes(commands: ControlSocket, repository: Path) -> list[Outcome]:
    """What a command gets that the socket's owner runs."""
    answers: list[list[Outcome]] = []
    client = threading.Thread(
        target=lambda: answers.append(send(repository, Command(action="reload"), 30))
    )
    client.start()
    while client.is_alive():
        commands.run_pending(lambda command: [Outcome(name=command.action)])
        client.join(0.01)
    return answers[0]


def test_socket_is_in_a_folder_of_its_user_alone(temporary: Path, tmp_path: Path) -> None:
    with contextlib.closing(ControlSocket(tmp_path)) as commands:
        [path] = socket_paths(tmp_path)
        assert path.parent.parent == temporary
        assert path.is_socket()
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert [each.name for each in outcomes(commands, tmp_path)] == ["reload"]
        assert list(temporary.glob(probe.CONTROL_SOCKETS)) == [path], "the probe finds it"
    assert not path.exists()


@pytest.mark.parametrize("taken", ["open to others", "a link", "another user's"])
def test_folder_that_others_control_is_refused_by_both_ends(
    temporary: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, taken: str
) -> None:
    [path] = socket_paths(tmp_path)
    theirs = path.parent
    if taken == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        theirs.symlink_to(tmp_path / "elsewhere")
    else:
        theirs.mkdir()
        theirs.chmod(0o755 if taken == "open to others" else 0o700)
    if taken == "another user's":
        if os.getuid() != 0:
            pytest.skip("only root can give a folder away")
        os.chown(theirs, 65534, 65534)
    with socket.socket(socket.AF_UNIX) as impostor:
        impostor.bind(str(path))
        impostor.listen()
        with pytest.raises(SetupError, match="no `triptych triton`"):
            send(tmp_path, Command(action="reload"), 5)
        with contextlib.closing(ControlSocket(tmp_path)) as commands:
            assert not commands.is_listening
            assert commands.is_first
    assert "not a folder of this user alone" in caplog.text


def test_runtime_folder_of_the_login_is_the_second_choice(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [first] = socket_paths(tmp_path)
    first.parent.mkdir(mode=0o755)
    first.parent.chmod(0o755)
    login = temporary / "login"
    login.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(login))
    with contextlib.closing(ControlSocket(tmp_path)) as commands:
        assert commands.is_listening
        assert (login / first.relative_to(temporary)).is_socket()
        assert outcomes(commands, tmp_path)
        with contextlib.closing(ControlSocket(tmp_path)) as second:
            assert not second.is_first


def test_socket_of_a_killed_supervisor_is_replaced(temporary: Path, tmp_path: Path) -> None:
    [path] = socket_paths(tmp_path)
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    assert path.exists()
    with contextlib.closing(ControlSocket(tmp_path)) as commands:
        assert commands.is_listening
        assert commands.is_first


def test_second_supervisor_takes_the_place_of_the_first(temporary: Path, tmp_path: Path) -> None:
    first = ControlSocket(tmp_path)
    with contextlib.closing(first), contextlib.closing(ControlSocket(tmp_path)) as second:
        assert not second.is_first
        assert not second.take_over(), "the first still listens"
        first.close()
        assert second.take_over()
        assert second.is_first
        assert outcomes(second, tmp_path)
        assert not second.take_over(), "once is enough"
