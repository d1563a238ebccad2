"""Runs in this process, without Ray: what an output holds after all that may happen to it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pyarrow.parquet as pq
import pytest

from inference.errors import InvalidRequest
from inference.tasks.embed import TASK as EMBED
from serving.batch import local_workers
from serving.batch.job import Job, Manifest
from serving.batch.local_workers import local_reports
from serving.batch.places import UNFINISHED, Place
from serving.batch.run import SUMMARY, Progress, begin, finish, only_run
from serving.batch.shards import Input, Shard
from serving.batch.worker import Report, Worker
from serving.batch.worker_pool import Pool
from tests.serving.batch.embedder import embedding, job, loaded, picture, settings, write_table
from triptych.errors import InvalidArgument, TriptychError

COUNT = 34
BAD = 12
"""A row that is no image."""


@pytest.fixture
def source(tmp_path: Path) -> Input:
    pictures = [picture(number * 31) for number in range(COUNT)]
    pictures[BAD] = b"no image"
    return Input.at(str(write_table(tmp_path / "in.parquet", pictures)))


def run(
    repository: Path, source: Input, output: Path | str, done: Job, most: int | None = None
) -> list[int]:
    """The shards that were made; the run is interrupted after so many."""
    made: list[int] = []

    def make(manifest: Manifest, shards: list[Shard]) -> Iterator[Report]:
        worker = Worker(manifest.job, manifest.source, settings(repository, output))
        for shard in shards:
            if len(made) == most:
                raise KeyboardInterrupt
            made.append(shard.number)
            yield worker.make(shard)

    manifest = begin(done, source, str(output), loaded(repository))
    finish(manifest, str(output), make, Progress(manifest.rows))
    return made


def entries(output: Path) -> list[dict]:
    return [
        json.loads(line)
        for part in sorted(output.glob("part-*.jsonl"))
        for line in part.read_text().splitlines()
    ]


def contents(output: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in output.glob("part-*")}


def test_each_row_has_its_answer_or_its_error(
    repository: Path, source: Input, tmp_path: Path
) -> None:
    run(repository, source, tmp_path / "out", job())
    found = entries(tmp_path / "out")
    assert [(one["file"], one["row"], one["id"]) for one in found] == [
        ("in.parquet", number, number) for number in range(COUNT)
    ]
    bad = found.pop(BAD)
    assert bad["error"]["type"] == "unsupported_image"
    assert bad["error"]["field"] == "images.0"
    assert "embedding" not in bad
    answers = [one["embedding"] for one in found]
    assert answers == [embedding(number * 31) for number in range(COUNT) if number != BAD]
    summary = json.loads((tmp_path / "out" / SUMMARY).read_text())
    assert (summary["rows"], summary["errors"]) == (COUNT, 1)
    assert not (tmp_path / "out" / UNFINISHED).exists()


def test_a_table_has_what_lines_have(repository: Path, source: Input, tmp_path: Path) -> None:
    run(repository, source, tmp_path / "lines", job())
    run(repository, source, tmp_path / "table", job(output_format="parquet"))
    parts = sorted((tmp_path / "table").glob("part-*.parquet"))
    rows = [row for part in parts for row in pq.read_table(part).to_pylist()]
    whole = [{name: value for name, value in row.items() if value is not None} for row in rows]
    assert whole == entries(tmp_path / "lines")


def test_an_interrupted_run_goes_on_where_it_ended(
    repository: Path, source: Input, tmp_path: Path
) -> None:
    run(repository, source, tmp_path / "whole", job())
    with pytest.raises(KeyboardInterrupt):
        run(repository, source, tmp_path / "out", job(), most=2)
    (tmp_path / "out" / UNFINISHED / "part-000002.jsonl.half").write_text("{")
    before = contents(tmp_path / "out")
    times = {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in before}
    assert run(repository, source, tmp_path / "out", job()) == [2, 3]
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in before} == times
    assert run(repository, source, tmp_path / "out", job()) == []
    assert json.loads((tmp_path / "out" / SUMMARY).read_text())["errors"] == 1


def test_input_and_output_may_be_in_object_storage(
    repository: Path, source: Input, tmp_path: Path
) -> None:
    """Here in fsspec's memory, which is an object store in one process."""
    run(repository, source, tmp_path / "out", job())
    with fsspec.open("memory://in/in.parquet", "wb") as file:
        file.write((tmp_path / "in.parquet").read_bytes())
    stored = Input.at("memory://in")
    with pytest.raises(KeyboardInterrupt):
        run(repository, stored, "memory://out", job(), most=2)
    assert run(repository, stored, "memory://out", job()) == [2, 3]
    found = fsspec.filesystem("memory").glob("/out/part-*")
    written = {Path(name).name: fsspec.filesystem("memory").cat(name) for name in found}
    assert written == contents(tmp_path / "out")


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_a_file_that_is_not_whole_is_made_again(
    repository: Path, source: Input, tmp_path: Path, format: str
) -> None:
    done = job(output_format=format)
    run(repository, source, tmp_path / "out", done)
    before = contents(tmp_path / "out")
    for number, size in ((1, 100), (3, 0)):
        file = tmp_path / "out" / f"part-{number:06d}.{format}"
        file.write_bytes(file.read_bytes()[:size])
    assert run(repository, source, tmp_path / "out", done) == [1, 3]
    assert contents(tmp_path / "out") == before


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"request": {"normalize": True}}, "normalize null, now true"),
        ({"version": 2}, "version 1, now 2"),
        ({"keep": ()}, r'keep \["id"\], now \[\]'),
        ({"shard_rows": 11}, "shard_rows 10, now 11"),
        ({"output_format": "parquet"}, 'output_format "jsonl", now "parquet"'),
    ],
)
def test_an_output_of_other_settings_is_refused(
    repository: Path, source: Input, tmp_path: Path, given: dict, message: str
) -> None:
    run(repository, source, tmp_path / "out", job())
    with pytest.raises(InvalidArgument, match=message):
        begin(job(**given), source, str(tmp_path / "out"), loaded(repository))


def test_an_output_of_another_input_is_refused(
    repository: Path, source: Input, tmp_path: Path
) -> None:
    run(repository, source, tmp_path / "out", job())
    file = write_table(tmp_path / "in.parquet", [picture(1)] * COUNT)
    with pytest.raises(InvalidArgument, match=r"--input has changed .*in\.parquet"):
        begin(job(), Input.at(str(file)), str(tmp_path / "out"), loaded(repository))


def test_a_folder_of_something_else_is_refused(
    repository: Path, source: Input, tmp_path: Path
) -> None:
    with pytest.raises(InvalidArgument, match="is no output"):
        begin(job(), source, str(tmp_path), loaded(repository))
    with pytest.raises(InvalidArgument, match="is no output"):
        begin(job(), source, str(tmp_path / "in.parquet"), loaded(repository))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"column": "text"}, "no column text; it has: id, image"),
        ({"column": None}, "--column"),
        ({"keep": ("size",)}, "no column size"),
        ({"keep": ("embedding",)}, "--keep embedding"),
        ({"request": {"normalise": True}}, "normalise"),
    ],
)
def test_wrong_settings_begin_nothing(
    repository: Path, source: Input, tmp_path: Path, given: dict, message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        begin(job(**given), source, str(tmp_path / "out"), loaded(repository))
    assert not (tmp_path / "out").exists()


def test_a_request_that_the_model_refuses_begins_nothing(
    repository: Path, source: Input, tmp_path: Path
) -> None:
    done = job(request={"normalize": False})
    with pytest.raises(InvalidRequest, match="leave normalize out"):
        begin(done, source, str(tmp_path / "out"), loaded(repository))
    assert not (tmp_path / "out").exists()


def test_an_output_has_one_run_at_a_time(tmp_path: Path) -> None:
    with only_run(str(tmp_path)), pytest.raises(InvalidArgument, match="another run"):  # noqa: SIM117
        with only_run(str(tmp_path)):
            pass


def test_a_shard_that_was_written_but_not_reported_is_not_made_again(
    repository: Path, source: Input, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = begin(job(), source, str(tmp_path / "out"), loaded(repository))
    shard, given = manifest.shards[1], settings(repository, tmp_path / "out")
    first = Worker(manifest.job, manifest.source, given).make(shard)
    with monkeypatch.context() as patch:
        patch.setattr(type(EMBED), "prepare", None)
        again = Worker(manifest.job, manifest.source, given).make(shard)
    assert (again.rows, again.errors) == (first.rows, first.errors) == (shard.rows, 1)


def test_a_row_that_ends_its_worker_gets_an_error(
    repository: Path, source: Input, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each death ends all work of a process, here by an exception that nothing catches."""
    run(repository, source, tmp_path / "whole", job())
    poison, deaths = picture(15 * 31), 0

    class Died(BaseException):
        pass

    prepare = EMBED.prepare

    def dies(request, images, *others):
        if poison in images:
            raise Died
        return prepare(request, images, *others)

    monkeypatch.setattr(EMBED, "prepare", dies)
    manifest = begin(job(), source, str(tmp_path / "out"), loaded(repository))
    waiting = list(manifest.shards)
    while waiting:
        worker = Worker(manifest.job, manifest.source, settings(repository, tmp_path / "out"))
        try:
            while waiting:
                worker.make(waiting[0])
                waiting.pop(0)
        except Died:
            deaths += 1
    assert deaths == 4
    found, whole = entries(tmp_path / "out"), entries(tmp_path / "whole")
    assert found.pop(15)["error"]["type"] == "quarantined"
    whole.pop(15)
    assert found == whole
    assert Place.of(str(tmp_path / "out" / UNFINISHED)).exists  # until `finish` ends


PICTURES = 30
POOL = Pool(2, 1, 1 << 30)
_ENDS = """
import os, pathlib, signal, sys
pathlib.Path("{folder}", f"start-{{os.getpid()}}").touch()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    table = write_table(tmp_path / "in.parquet", [picture(number) for number in range(PICTURES)])
    source = Input.at(str(table))
    return Manifest(job=job(), source=source, shards=source.shards(10))


def test_workers_that_cannot_start_end_the_run(
    manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (sys.executable, "-c", _ENDS.format(folder=tmp_path))
    monkeypatch.setattr(local_workers, "_PROGRAM", program)
    given = settings(tmp_path / "model_repository", tmp_path / "out")
    with pytest.raises(TriptychError, match="before they have opened the model: killed by SIGKILL"):
        list(local_reports(manifest, manifest.shards, given, POOL))
    assert len(list(tmp_path.glob("start-*"))) == POOL.workers + local_workers._ENDS - 1


@pytest.mark.integration
def test_every_shard_has_one_report(manifest: Manifest, repository: Path, tmp_path: Path) -> None:
    given = settings(repository, tmp_path / "out")
    found = list(local_reports(manifest, manifest.shards, given, POOL))
    assert sorted(report.shard for report in found) == [0, 1, 2]
    assert sum(report.rows for report in found) == PICTURES


@pytest.mark.integration
def test_what_a_worker_lacks_is_named(manifest: Manifest, tmp_path: Path) -> None:
    given = settings(tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(TriptychError, match=r"a worker failed: .*nowhere is not a folder"):
        list(local_reports(manifest, manifest.shards, given, POOL))
