"""The command line of `triptych batch`, and where its workers run."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from inference.bundle.repository import Repository
from inference.tasks import TASKS
from serving.batch import cluster, command
from serving.batch.cluster import check_address
from serving.batch.job import BatchSettings, Manifest
from serving.batch.shards import Shard
from serving.batch.worker import Report, Worker, WorkerSettings
from serving.batch.worker_pool import Pool, plan_pool
from tests.serving.batch.embedder import NAME, embedder, picture, write_table
from triptych.cli import run as run_cli
from triptych.errors import InvalidArgument

COUNT = 25
Cli = Callable[..., int]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return embedder(tmp_path / "model_repository")


@pytest.fixture
def triptych(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Runs a command line over a table of images; returns its exit code."""

    def reports(
        manifest: Manifest, shards: Iterable[Shard], settings: WorkerSettings, pool: Pool
    ) -> Iterator[Report]:
        assert pool == Pool(2, 1, 1 << 30)
        worker = Worker(manifest.job, manifest.source, settings)
        yield from map(worker.make, shards)

    monkeypatch.setattr(command, "this_machine", lambda: (2, 8 << 30))
    monkeypatch.setattr(command, "local_reports", reports)
    write_table(tmp_path / "in.parquet", [picture(number) for number in range(COUNT)])

    def run(*given: str, task: str = "embed") -> int:
        own = ["--input", str(tmp_path / "in.parquet"), "--output", str(tmp_path / "out")]
        own += ["--repository", str(repository), "--worker-memory", "1GiB"]
        return run_cli(["batch", task, *own, *given])

    return run


IMAGES = ("--column", "image", "--rows", "images", "--shard-rows", "9")


def manifest(tmp_path: Path) -> Manifest:
    return Manifest.model_validate_json((tmp_path / "out" / "manifest.json").read_text())


def test_rows_may_be_lists_of_images(triptych: Cli, tmp_path: Path) -> None:
    lists = [[picture(5), picture(9)], [picture(256)], [picture(4)] * 300]
    pq.write_table(pa.table({"image": lists}), tmp_path / "in.parquet")
    assert triptych(*IMAGES) == 0
    (part,) = (tmp_path / "out").glob("part-*.jsonl")
    rows = [json.loads(line) for line in part.read_text().splitlines()]
    assert [row["embedding"] for row in rows] == [[1.0], [-1.0], [1.0]]
    assert len({row["hash"] for row in rows}) == 3


def test_a_run_writes_an_output_and_says_what_it_cost(
    triptych: Cli, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert triptych(*IMAGES, "--keep", "id") == 0
    parts = sorted((tmp_path / "out").glob("part-*.jsonl"))
    rows = [json.loads(line) for part in parts for line in part.read_text().splitlines()]
    assert [row["id"] for row in rows] == list(range(COUNT))
    shown = capsys.readouterr()
    assert f"{NAME} version 1: {COUNT} rows, 2 workers of 1 cores" in shown.err
    assert f"{COUNT} of {COUNT} rows (100 %), 0 errors" in shown.out
    assert "core-seconds per 1000 rows" in shown.out


def test_rows_with_errors_are_an_exit_code(triptych: Cli, tmp_path: Path) -> None:
    write_table(tmp_path / "in.parquet", [picture(1), None])
    assert triptych(*IMAGES) == 1
    assert triptych(*IMAGES) == 1  # of a run that finds all done, too


def test_an_output_is_ended_with_the_version_that_it_was_begun_with(
    triptych: Cli, repository: Path, tmp_path: Path
) -> None:
    assert triptych(*IMAGES) == 0
    (tmp_path / "out" / "part-000001.jsonl").unlink()
    first, second = repository / NAME / "1", repository / NAME / "2"
    second.mkdir()
    for file in first.iterdir():
        (second / file.name).write_bytes(
            file.read_bytes().replace(b'"version": 1', b'"version": 2')
        )
    assert Repository(repository).complete(NAME)[0].version == 2
    assert triptych(*IMAGES) == 0
    assert manifest(tmp_path).job.version == 1


def test_an_interruption_says_how_to_go_on(
    triptych: Cli,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    reports = command.local_reports

    def interrupted(*given: object) -> Iterator[Report]:
        yield from [next(iter(reports(*given)))]
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(command, "local_reports", interrupted)
        assert triptych(*IMAGES) == 130
    assert f"9 of {COUNT} rows (36 %)" in capsys.readouterr().err
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["rows"] == 9
    assert triptych(*IMAGES) == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--column", "image"), "colours cannot embed texts"),
        (("--column", "id", "--rows", "pictures"), "embed takes texts or images"),
        (("--column", "image", "--rows", "images", "--model", "other"), "no such model"),
        (("--rows", "images"), "--column"),
        ((*IMAGES, "--prompt", "a"), "a prompt is for texts"),
        ((*IMAGES, "--workers", "9"), "9 workers of 1 cores and 1.0 GiB do not fit"),
        ((*IMAGES, "--input", "nowhere"), "there is no nowhere"),
        ((*IMAGES, "--shard-rows", "0"), "--shard-rows"),
    ],
)
def test_what_is_wrong_is_one_line(
    triptych: Cli, given: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert triptych(*given) in (1, 2)
    shown = capsys.readouterr().err.splitlines()
    assert message in shown[-1]


def test_stored_glossaries_are_refused(triptych: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    assert triptych("--column", "id", "--glossary-name", "mine", task="translate") == 1
    assert "--glossary-file" in capsys.readouterr().err


def built(task: str):
    return command.BatchCommands().get_command(None, task)


def test_every_task_of_texts_or_images_has_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["batch", "--help"]) == 0
    shown = capsys.readouterr().out
    names = {name for name, task in TASKS.items() if command.row_fields(task)}
    assert {"translate", "caption", "zero-shot", "embed", "classify", "generate"} <= names
    assert all(f" {name} " in shown for name in names)
    for name in names:
        spellings = [each for flag in built(name).params for each in flag.opts]
        assert len(spellings) == len(set(spellings)), name
        assert "--frame-count" not in spellings  # a row has its own
    assert run_cli(["batch", "translate", "--help"]) == 0
    assert {"--num-beams", "--shard-rows", "--keep"} <= set(capsys.readouterr().out.split())


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


def test_silence_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_TIMEOUT_S", 0.01)
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


GIB = 1 << 30


@pytest.mark.parametrize(
    ("nodes", "needed", "given", "pool"),
    [
        ([(8, 32 * GIB)], GIB, {}, (8, 1)),
        ([(8, 32 * GIB)], 10 * GIB, {}, (2, 3)),  # memory holds three of one core, idle cores help
        ([(8, 32 * GIB)], 16 * GIB, {}, (2, 4)),
        ([(8, 32 * GIB), (4, 8 * GIB), (0, 64 * GIB)], 2 * GIB, {}, (12, 1)),
        ([(8, 32 * GIB), (4, 8 * GIB)], 4 * GIB, {"threads": 4}, (3, 4)),
        ([(8, 32 * GIB)], GIB, {"workers": 3}, (3, 1)),
    ],
)
def test_workers_fill_the_nodes(nodes, needed: int, given: dict, pool: tuple[int, int]) -> None:
    found = plan_pool(nodes, needed, BatchSettings(**given))
    assert found == Pool(*pool, needed)


@pytest.mark.parametrize(
    ("nodes", "given"),
    [
        ([(4, GIB)], {}),
        ([], {}),
        ([(4, 8 * GIB)], {"workers": 5}),
        ([(2, 8 * GIB)], {"threads": 4}),
    ],
)
def test_workers_that_do_not_fit_are_refused(nodes, given: dict) -> None:
    with pytest.raises(InvalidArgument, match="do not fit"):
        plan_pool(nodes, 2 * GIB, BatchSettings(**given))
