"""Addresses at which there is no Ray are refused at once, with the reason."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from serving.batch import cluster_address
from serving.batch.cluster_address import check_address
from tests.serving.batch.embedder import NAME, embedder, picture, write_table
from triptych.cli import run as run_cli
from triptych.errors import InvalidArgument

SETTINGS = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""A server's first frame of HTTP/2, without settings."""


@contextlib.contextmanager
def server(answer: bytes) -> Iterator[str]:
    """The address of a server that answers the first bytes of its one connection."""

    def serve() -> None:
        connection, _ = listening.accept()
        with connection, contextlib.suppress(ConnectionError):  # the client leaves at a wrong byte
            connection.recv(1)
            for byte in answer:
                connection.sendall(bytes((byte,)))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        thread.join()


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
    return port


def test_what_speaks_http_2_may_be_ray() -> None:
    with server(SETTINGS) as address:
        check_address(address)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", SETTINGS[:-1]])
def test_what_speaks_another_protocol_is_refused(answer: bytes) -> None:
    with server(answer) as address:
        with pytest.raises(InvalidArgument, match="what listens on that port is not Ray") as raised:
            check_address(address)
        assert address in str(raised.value)


def test_a_port_without_a_process_is_refused() -> None:
    address = f"127.0.0.1:{closed_port()}"
    with pytest.raises(InvalidArgument, match="no process listens on that port"):
        check_address(address)


def test_silence_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_address, "_TIMEOUT_S", 0.01)
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,  # connects, and answers nothing
        pytest.raises(InvalidArgument, match="nothing came in"),
    ):
        check_address(f"127.0.0.1:{listening.getsockname()[1]}")


def test_encrypted_ray_is_not_greeted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_USE_TLS", "1")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        check_address(f"127.0.0.1:{listening.getsockname()[1]}")


@pytest.mark.parametrize("error", [socket.gaierror(-2, "Name or service not known"), None])
def test_a_name_without_an_address_is_refused(
    monkeypatch: pytest.MonkeyPatch, error: OSError | None
) -> None:
    def connect(*_: object) -> socket.socket:
        raise error or UnicodeError("label too long")

    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(InvalidArgument, match=r"no Ray at nowhere:6379: the name nowhere has no"):
        check_address("nowhere:6379")


@pytest.mark.parametrize(
    ("address", "host"), [("[::1]:7", "::1"), ("::1:7", "::1"), ("head.example:7", "head.example")]
)
def test_hosts_are_names_and_numbers(
    monkeypatch: pytest.MonkeyPatch, address: str, host: str
) -> None:
    asked: list[object] = []

    def connect(where: object, timeout_s: float) -> socket.socket:
        asked.append(where)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(InvalidArgument):
        check_address(address)
    assert asked == [(host, 7)]


@pytest.mark.parametrize(
    "address", ["ray://127.0.0.1:10001", "local", "127.0.0.1", ":6379", "head:0", "head:65536"]
)
def test_other_forms_are_refused(address: str) -> None:
    with pytest.raises(InvalidArgument, match=r"is not HOST:PORT or auto: give HOST:PORT"):
        check_address(address)


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    repository = embedder(tmp_path / "model_repository")
    table = write_table(tmp_path / "in.parquet", [picture(1)])
    given = ["batch", "embed", "--input", str(table), "--column", "image", "--rows", "images"]
    given += ["--output", str(tmp_path / "out"), "--repository", str(repository), "--model", NAME]
    return given


def test_a_command_with_such_an_address_ends_with_one_line(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = f"127.0.0.1:{closed_port()}"
    assert run_cli([*arguments, "--address", address]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"triptych: --address: no Ray at {address}: no process listens")
    assert not (tmp_path / "out").exists()


def test_what_ray_refuses_is_one_line(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As it refuses `auto` where there is no cluster; another test's would be one."""

    def init(*_: object, **__: object) -> None:
        raise ConnectionError("Could not find any\nrunning Ray instance.")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=init))
    assert run_cli([*arguments, "--address", "auto"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    expected = "--address: no Ray at auto: Could not find any running Ray instance: give HOST:PORT"
    assert line.startswith(f"triptych: {expected}")
    assert not (tmp_path / "out").exists()
