"""The command line of `triptych batch`, with a worker in this process in the place of others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from inference.bundle.repository import Repository
from inference.tasks import TASKS
from serving.batch import command
from serving.batch.job import Manifest
from serving.batch.shards import Shard
from serving.batch.worker import Report, Worker, WorkerSettings
from serving.batch.worker_pool import Pool
from tests.serving.batch.embedder import NAME, embedder, picture, write_table
from triptych.cli import run as run_cli

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
    assert run_cli(["batch", "translate", "--help"]) == 0
    assert {"--num-beams", "--shard-rows", "--keep"} <= set(capsys.readouterr().out.split())
