"""Workers, nodes and drivers that are killed lose no row and repeat none."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from serving.batch.shards import Input
from tests.serving.batch.embedder import NAME, job, picture, write_table
from tests.serving.batch.test_run import Runs, contents

pytestmark = pytest.mark.integration
PARTS = 3
"""Files of the output, before something is killed."""
ROWS = 3000
"""So many that a run lasts while something is killed."""
TIMEOUT_S = 120.0


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("table")
    return write_table(folder / "in.parquet", [picture(7 * n) for n in range(ROWS)], ROWS)


@pytest.fixture(scope="module")
def undisturbed(
    repository: Path, table: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, bytes]:
    output = tmp_path_factory.mktemp("undisturbed") / "out"
    Runs(repository, output.parent, Input.at(str(table)), output).run(job(keep=()))
    return contents(output)


def arguments(repository: Path, table: Path, output: Path) -> list[str]:
    return [
        *("batch", "embed", "--input", str(table), "--column", "image", "--rows", "images"),
        *("--output", str(output), "--model", NAME, "--repository", str(repository)),
        *("--shard-rows", "10", "--worker-memory", "100MiB"),
    ]


def start(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as sink:
        return subprocess.Popen([sys.executable, *command], stdout=sink, stderr=sink)


def wait_for_parts(process: subprocess.Popen[bytes], output: Path) -> None:
    until_s = time.monotonic() + TIMEOUT_S
    while len(contents(output)) < PARTS:
        assert process.poll() is None, "the run has ended"
        assert time.monotonic() < until_s, "no parts"
        time.sleep(0.01)


def descendants(process: subprocess.Popen[bytes], name: str) -> Iterator[psutil.Process]:
    for one in psutil.Process(process.pid).children(recursive=True):
        try:
            if name in " ".join(one.cmdline()):
                yield one
        except psutil.NoSuchProcess:
            continue


def test_a_killed_worker_loses_no_row(
    repository: Path, table: Path, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    output, log = tmp_path / "out", tmp_path / "log"
    command = ["-m", "triptych", *arguments(repository, table, output), "--workers", "1"]
    process = start(command, log)
    wait_for_parts(process, output)
    worker = next(descendants(process, "worker_process"))
    worker.kill()
    assert len(contents(output)) < len(undisturbed)
    assert process.wait(TIMEOUT_S) == 0, log.read_text()
    assert contents(output) == undisturbed
    assert f"{ROWS} of {ROWS} rows (100 %), 0 errors" in log.read_text()


@pytest.mark.full
def test_a_worker_that_cannot_open_the_model_ends_the_run_with_one_line(
    repository: Path, table: Path, tmp_path: Path
) -> None:
    broken, log = tmp_path / "model_repository", tmp_path / "log"
    shutil.copytree(repository, broken)
    (broken / NAME / "1" / "model.onnx").write_bytes(b"no graph")
    command = ["-m", "triptych", *arguments(broken, table, tmp_path / "out")]
    assert start(command, log).wait(TIMEOUT_S) == 1
    last = log.read_text().splitlines()[-1]
    assert re.fullmatch(r"triptych: a worker failed: .*/model\.onnx failed.*", last)
    assert "Traceback" not in log.read_text()


@pytest.mark.full
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_driver_is_resumed(
    repository: Path, table: Path, undisturbed: dict[str, bytes], tmp_path: Path, sent: int
) -> None:
    output, log = tmp_path / "out", tmp_path / "log"
    command = ["-m", "triptych", *arguments(repository, table, output)]
    process = start(command, log)
    wait_for_parts(process, output)
    workers = list(descendants(process, "worker_process"))
    assert workers
    process.send_signal(sent)
    assert process.wait(TIMEOUT_S) == (-sent if sent == signal.SIGKILL else 130)
    assert not psutil.wait_procs(workers, TIMEOUT_S)[1]  # they end with it
    before = {name: (output / name).stat().st_mtime_ns for name in contents(output)}
    assert len(before) < len(undisturbed)
    assert start(command, log).wait(TIMEOUT_S) == 0, log.read_text()
    assert contents(output) == undisturbed
    assert {name: (output / name).stat().st_mtime_ns for name in before} == before


@pytest.mark.full
@pytest.mark.parametrize("killed", ["node", "worker"])
def test_what_is_killed_on_a_cluster_loses_no_row(
    repository: Path, table: Path, undisturbed: dict[str, bytes], tmp_path: Path, killed: str
) -> None:
    output, log = tmp_path / "out", tmp_path / "log"
    program = ["-m", "tests.serving.batch.cluster_program", killed, str(output)]
    process = start([*program, *arguments(repository, table, output)], log)
    assert process.wait(TIMEOUT_S) == 0, log.read_text()
    assert contents(output) == undisturbed
