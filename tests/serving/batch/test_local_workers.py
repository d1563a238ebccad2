"""Workers that end: how often others are started in their place."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from serving.batch import local_workers
from serving.batch.job import Manifest
from serving.batch.local_workers import local_reports
from serving.batch.shards import Input
from serving.batch.worker_pool import Pool
from tests.serving.batch.embedder import job, picture, settings, write_table
from triptych.errors import TriptychError

COUNT = 30
POOL = Pool(2, 1, 1 << 30)
_ENDS = """
import os, pathlib, signal, sys
pathlib.Path("{folder}", f"start-{{os.getpid()}}").touch()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    table = write_table(tmp_path / "in.parquet", [picture(number) for number in range(COUNT)])
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
    assert sum(report.rows for report in found) == COUNT


@pytest.mark.integration
def test_what_a_worker_lacks_is_named(manifest: Manifest, tmp_path: Path) -> None:
    given = settings(tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(TriptychError, match=r"a worker failed: .*nowhere is not a folder"):
        list(local_reports(manifest, manifest.shards, given, POOL))
