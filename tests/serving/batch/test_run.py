"""Runs in this process, without Ray: what an output holds after all that may happen to it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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


@dataclass(frozen=True)
class Runs:
    """Runs over one table, to one output beside it."""

    repository: Path
    folder: Path
    source: Input
    out: Any

    def beside(self, name: str) -> Runs:
        """To another output."""
        return replace(self, out=self.folder / name)

    def begin(self, done: Job | None = None) -> Manifest:
        return begin(done or job(), self.source, str(self.out), loaded(self.repository))

    def run(self, done: Job | None = None, most: int | None = None) -> list[int]:
        """The shards that were made; the run is interrupted after so many."""
        made: list[int] = []

        def make(manifest: Manifest, shards: list[Shard]) -> Iterator[Report]:
            worker = Worker(manifest.job, manifest.source, settings(self.repository, self.out))
            for shard in shards:
                if len(made) == most:
                    raise KeyboardInterrupt
                made.append(shard.number)
                yield worker.make(shard)

        manifest = self.begin(done)
        finish(manifest, str(self.out), make, Progress(manifest.rows))
        return made


@pytest.fixture
def runs(repository: Path, tmp_path: Path) -> Runs:
    pictures = [picture(number * 31) for number in range(COUNT)]
    pictures[BAD] = b"no image"
    source = Input.at(str(write_table(tmp_path / "in.parquet", pictures)))
    return Runs(repository, tmp_path, source, tmp_path / "out")


def entries(output: Path) -> list[dict]:
    return [
        json.loads(line)
        for part in sorted(output.glob("part-*.jsonl"))
        for line in part.read_text().splitlines()
    ]


def contents(output: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in output.glob("part-*")}


def test_each_row_has_its_answer_or_its_error(runs: Runs) -> None:
    runs.run()
    found = entries(runs.out)
    assert [(one["file"], one["row"], one["id"]) for one in found] == [
        ("in.parquet", number, number) for number in range(COUNT)
    ]
    bad = found.pop(BAD)
    assert bad["error"]["type"] == "unsupported_image"
    assert bad["error"]["field"] == "images.0"
    assert "embedding" not in bad
    answers = [one["embedding"] for one in found]
    assert answers == [embedding(number * 31) for number in range(COUNT) if number != BAD]
    summary = json.loads((runs.out / SUMMARY).read_text())
    assert (summary["rows"], summary["errors"]) == (COUNT, 1)
    assert not (runs.out / UNFINISHED).exists()


def test_a_table_has_what_lines_have(runs: Runs) -> None:
    runs.beside("lines").run()
    runs.beside("table").run(job(output_format="parquet"))
    parts = sorted((runs.folder / "table").glob("part-*.parquet"))
    rows = [row for part in parts for row in pq.read_table(part).to_pylist()]
    whole = [{name: value for name, value in row.items() if value is not None} for row in rows]
    assert whole == entries(runs.folder / "lines")


def test_an_interrupted_run_goes_on_where_it_ended(runs: Runs) -> None:
    runs.beside("whole").run()
    with pytest.raises(KeyboardInterrupt):
        runs.run(most=2)
    (runs.out / UNFINISHED / "part-000002.jsonl.half").write_text("{")
    before = contents(runs.out)
    times = {name: (runs.out / name).stat().st_mtime_ns for name in before}
    assert runs.run() == [2, 3]
    assert contents(runs.out) == contents(runs.folder / "whole")
    assert {name: (runs.out / name).stat().st_mtime_ns for name in before} == times
    assert runs.run() == []
    assert json.loads((runs.out / SUMMARY).read_text())["errors"] == 1


def test_input_and_output_may_be_in_object_storage(runs: Runs) -> None:
    """Here in fsspec's memory, which is an object store in one process."""
    runs.run()
    with fsspec.open("memory://in/in.parquet", "wb") as file:
        file.write((runs.folder / "in.parquet").read_bytes())
    stored = replace(runs, source=Input.at("memory://in"), out="memory://out")
    with pytest.raises(KeyboardInterrupt):
        stored.run(most=2)
    assert stored.run() == [2, 3]
    found = fsspec.filesystem("memory").glob("/out/part-*")
    written = {Path(name).name: fsspec.filesystem("memory").cat(name) for name in found}
    assert written == contents(runs.out)


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_a_file_that_is_not_whole_is_made_again(runs: Runs, format: str) -> None:
    done = job(output_format=format)
    runs.run(done)
    before = contents(runs.out)
    for number, size in ((1, 100), (3, 0)):
        file = runs.out / f"part-{number:06d}.{format}"
        file.write_bytes(file.read_bytes()[:size])
    assert runs.run(done) == [1, 3]
    assert contents(runs.out) == before


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
def test_an_output_of_other_settings_is_refused(runs: Runs, given: dict, message: str) -> None:
    runs.run()
    with pytest.raises(InvalidArgument, match=message):
        runs.begin(job(**given))


def test_an_output_of_another_input_is_refused(runs: Runs) -> None:
    runs.run()
    file = write_table(runs.folder / "in.parquet", [picture(1)] * COUNT)
    with pytest.raises(InvalidArgument, match=r"--input has changed .*in\.parquet"):
        replace(runs, source=Input.at(str(file))).begin()


def test_a_folder_of_something_else_is_refused(runs: Runs) -> None:
    with pytest.raises(InvalidArgument, match="is no output"):
        runs.beside("").begin()
    with pytest.raises(InvalidArgument, match="is no output"):
        runs.beside("in.parquet").begin()


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
def test_wrong_settings_begin_nothing(runs: Runs, given: dict, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        runs.begin(job(**given))
    assert not runs.out.exists()


def test_a_request_that_the_model_refuses_begins_nothing(runs: Runs) -> None:
    done = job(request={"normalize": False})
    with pytest.raises(InvalidRequest, match="leave normalize out"):
        runs.begin(done)
    assert not runs.out.exists()


def test_an_output_has_one_run_at_a_time(tmp_path: Path) -> None:
    with only_run(str(tmp_path)), pytest.raises(InvalidArgument, match="another run"):  # noqa: SIM117
        with only_run(str(tmp_path)):
            pass


def test_a_shard_that_was_written_but_not_reported_is_not_made_again(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = runs.begin()
    shard, given = manifest.shards[1], settings(runs.repository, runs.out)
    first = Worker(manifest.job, manifest.source, given).make(shard)
    with monkeypatch.context() as patch:
        patch.setattr(type(EMBED), "prepare", None)
        again = Worker(manifest.job, manifest.source, given).make(shard)
    assert (again.rows, again.errors) == (first.rows, first.errors) == (shard.rows, 1)


def test_a_row_that_ends_its_worker_gets_an_error(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each death ends all work of a process, here by an exception that nothing catches."""
    runs.beside("whole").run()
    poison, deaths = picture(15 * 31), 0

    class Died(BaseException):
        pass

    prepare = EMBED.prepare

    def dies(request, images, *others):
        if poison in images:
            raise Died
        return prepare(request, images, *others)

    monkeypatch.setattr(EMBED, "prepare", dies)
    manifest = runs.begin()
    waiting = list(manifest.shards)
    while waiting:
        worker = Worker(manifest.job, manifest.source, settings(runs.repository, runs.out))
        try:
            while waiting:
                worker.make(waiting[0])
                waiting.pop(0)
        except Died:
            deaths += 1
    assert deaths == 4
    found, whole = entries(runs.out), entries(runs.folder / "whole")
    assert found.pop(15)["error"]["type"] == "quarantined"
    whole.pop(15)
    assert found == whole
    assert Place.of(str(runs.out / UNFINISHED)).exists  # until `finish` ends


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
