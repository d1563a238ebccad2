"""What a supervisor is asked for and records: commands, versions, the record."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inference.bundle.manifest import Bundle
from inference.bundle.repository import Repository
from inference.errors import BundleError, SetupError
from serving import probe
from serving.triton.control_socket import ControlSocket, send, socket_paths
from serving.triton.served import Choice, Refusal, ServedVersions, read_record
from serving.triton.version_control import Command, Outcome, VersionControl
from tests.inference.tiny_models import publish


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


NAME = "speaker"


class Server:
    """A server of one bundle, with versions of which some are not complete."""

    def __init__(self, served: int, versions: list[int], incomplete: tuple[int, ...] = ()) -> None:
        self.served = {NAME: served}
        self.settings = SimpleNamespace(repository="repository", watch=False)
        self.repository = self
        self._versions = versions
        self._incomplete = incomplete

    def names(self) -> list[str]:
        return [NAME]

    def numbers(self, name: str) -> list[int]:
        return self._versions

    def complete(self, name: str) -> list[Any]:
        found = [number for number in self._versions if number not in self._incomplete]
        return [SimpleNamespace(version=number) for number in found]

    def open(self, name: str, version: int) -> None:
        if version in self._incomplete:
            raise BundleError("it has no bundle.json")

    def load(self, name: str, version: int | None) -> None:
        assert version is not None
        self.served[name] = version


@pytest.mark.parametrize(
    ("action", "served", "incomplete", "wanted"),
    [
        ("rollback", 4, (), 3),
        ("rollback", 4, (3,), 2),
        ("rollback", 2, (), 1),
        ("reload", 1, (), 4),
        ("reload", 1, (4,), 3),
        ("reload", 3, (4,), 3),
    ],
)
def test_command_takes_the_nearest_complete_version(
    action: Any, served: int, incomplete: tuple[int, ...], wanted: int
) -> None:
    server: Any = Server(served, [4, 3, 2, 1], incomplete)
    [outcome] = VersionControl(server).run(Command(action=action))
    assert (outcome.before, outcome.after, server.served) == (served, wanted, {NAME: wanted})


def test_nothing_is_older_than_the_oldest_version() -> None:
    server: Any = Server(1, [2, 1])
    [outcome] = VersionControl(server).run(Command(action="rollback", name=NAME))
    assert (outcome.after, server.served) == (1, {NAME: 1})
    assert outcome.problem == "no version older than 1, nothing to go back to"


@pytest.fixture
def complete(tmp_path: Path) -> list[Bundle]:
    """Versions 3, 2, 1."""
    for version in (1, 2, 3):
        publish(tmp_path, "a", None, "", version=version)
    return Repository(tmp_path).complete("a")


def order(record: ServedVersions, complete: list[Bundle]) -> list[int]:
    return [bundle.version for bundle in record.in_order("a", complete)]


def test_newest_goes_first_without_a_record(tmp_path: Path, complete: list[Bundle]) -> None:
    assert order(ServedVersions(tmp_path / "served.json"), complete) == [3, 2, 1]


def test_rollback_survives_and_ends_with_the_next_export(
    tmp_path: Path, complete: list[Bundle]
) -> None:
    ServedVersions(tmp_path / "served.json").set("a", Choice(version=1, newest=3))
    again = ServedVersions(tmp_path / "served.json")
    assert order(again, complete) == [1, 3, 2]
    publish(tmp_path, "a", None, "", version=4)
    assert order(again, Repository(tmp_path).complete("a")) == [4, 3, 2, 1]


def test_record_that_cannot_be_written_holds_for_this_process(
    tmp_path: Path, complete: list[Bundle], caplog: pytest.LogCaptureFixture
) -> None:
    record = ServedVersions(tmp_path / "missing" / "served.json")
    for version in (1, 2):
        record.set("a", Choice(version=version, newest=3))
    assert order(record, complete) == [2, 3, 1]
    assert not record.is_persistent
    [message] = caplog.messages
    assert "--state" in message


def test_second_supervisor_leaves_the_record_of_the_first(
    tmp_path: Path, complete: list[Bundle]
) -> None:
    ServedVersions(tmp_path / "served.json").set("a", Choice(version=1, newest=3))
    second = ServedVersions(tmp_path / "served.json")
    second.is_ours = False
    second.set("a", Choice(version=2, newest=3))
    assert order(second, complete) == [2, 3, 1]
    assert order(ServedVersions(tmp_path / "served.json"), complete) == [1, 3, 2]
    second.take_over()
    assert order(ServedVersions(tmp_path / "served.json"), complete) == [2, 3, 1]


@pytest.mark.parametrize("content", ["", "[]", '{"served": {"a": {"version": 0, "newest": 1}}}'])
def test_damaged_record_is_ignored_with_one_line(
    tmp_path: Path, complete: list[Bundle], content: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "served.json").write_text(content)
    assert order(ServedVersions(tmp_path / "served.json"), complete) == [3, 2, 1]
    assert len(caplog.messages) == 1


def test_refusals_are_written_beside_the_choices(tmp_path: Path) -> None:
    path = tmp_path / "served.json"
    record = ServedVersions(path)
    record.set("a", Choice(version=1, newest=2))
    refusal = Refusal(version=2, reason="b version 2 fails its self-check")
    record.set_refused({"b": refusal})
    found = read_record(path)
    assert (found.served["a"].version, found.refused) == (1, {"b": refusal})
    assert found.self_check
    record.set_refused({})
    assert read_record(path).refused == {}


def test_record_of_a_run_with_the_check_does_not_outlive_it(tmp_path: Path) -> None:
    path = tmp_path / "served.json"
    ServedVersions(path).set("a", Choice(version=1, newest=1))
    ServedVersions(path, self_check=False).set_refused({})
    assert not read_record(path).self_check
    assert read_record(path).served
