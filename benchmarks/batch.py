"""`triptych batch` beside the same engine in one process: rows a second, in interleaved rounds.

`python -m benchmarks.batch --repository model_repository` takes the examples' bundles. The engine
in process is the faster of one process with all cores and one process a core; the rows are in its
memory, and their answers are dropped. Starting and loading are left out on both sides.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psutil

from benchmarks.harness.closed_loop import interleave
from benchmarks.harness.machine import describe, load, markdown, write_json
from inference.bundle.reader import newest_bundle
from inference.engine.scheduler import Capacity
from inference.process_limits import usable_cores
from inference.tasks import TASKS
from inference.tasks.shared.loaded_model import TaskLimits
from serving.batch.job import Job
from serving.batch.rows import Row, RowRequests
from serving.batch.worker import WorkerSettings, open_model, template
from serving.local_model import open_local_model
from triptych.operation import operation

RESULTS = Path(__file__).parent / "results" / "batch.json"
REQUEST_ROWS = 32
_POLL_S = 0.005
CORES = usable_cores()


@dataclass(frozen=True)
class Work:
    """What is measured: a task of a bundle, and its rows."""

    bundle: str
    task: str
    field: str
    rows: int
    request: Mapping[str, Any]


class Span(NamedTuple):
    """What a system took for the rows: time, and processor time of all its processes."""

    seconds: float
    core_s: float


WORKS = (
    Work("example-es-en", "translate", "texts", 24_000, {"num_beams": 1}),
    Work("example-es-en", "translate", "texts", 12_000, {"num_beams": 4}),
    Work("example-bert-embed", "embed", "texts", 60_000, {}),
    Work("example-captioner", "caption", "images", 6_000, {}),
)
IN_PROCESS = ("one process", "a process a core", "grouped")
BATCH = "batch"
HEADER = ("", "rows/s", "core-seconds per 1000 rows", "batch ÷ it", "core-seconds, batch ÷ it")


def main() -> None:
    """Measure, print a table, and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repository", type=Path, default=Path("model_repository"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--works", type=int, nargs="*", default=range(len(WORKS)))
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of rows")
    parser.add_argument("--systems", nargs="+", choices=IN_PROCESS, default=IN_PROCESS)
    given = parser.parse_args()
    entries: list[dict[str, Any]] = []
    for work in (WORKS[number] for number in given.works):
        with tempfile.TemporaryDirectory() as folder:
            entries.append(measure(work, given, Path(folder)))
        print(json.dumps(entries[-1]), flush=True)
    write_json({"machine": describe(), "load": load(), "works": entries}, RESULTS)
    for entry in entries:
        print(_title(entry))
        print(markdown(HEADER, _lines(entry)))


def measure(work: Work, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Rows a second of each system, and the median of the rounds' ratios of `batch` to each."""
    rows = _rows(work, int(work.rows * given.scale))
    source = _written(rows, folder)
    systems = (*given.systems, BATCH)
    found: dict[str, list[float]] = {system: [] for system in systems}
    used: dict[str, list[float]] = {system: [] for system in systems}
    for number, system in interleave(systems, given.rounds):
        if system == BATCH:
            span = _batch(work, source, folder / f"out-{number}", given.repository)
        else:
            span = _in_process(work, rows, given.repository, system)
        found[system].append(len(rows) / span.seconds)
        used[system].append(1000 * span.core_s / len(rows))
        shown = f"{found[system][-1]:.0f} rows/s, {used[system][-1]:.3f} core-seconds per 1000 rows"
        print(f"{work.task} {system}: {shown}", file=sys.stderr, flush=True)
    return {
        "bundle": work.bundle, "task": work.task, "request": dict(work.request), "rows": len(rows),
        "rows_per_s": found, "core_s_per_1000_rows": used,
        "ratio": {one: _ratio(found[BATCH], found[one]) for one in systems},
        "cost_ratio": {one: _ratio(used[BATCH], used[one]) for one in systems},
    }  # fmt: skip


def _ratio(own: Sequence[float], others: Sequence[float]) -> float:
    return median(one / other for one, other in zip(own, others, strict=True))


def _rows(work: Work, count: int) -> list[Any]:
    if work.field == "images":
        from examples.history.task_requests import as_pngs
        from examples.scenes.rendering import render
        from examples.scenes.scene import scenes

        drawn = scenes("train", count, seed=1)
        return as_pngs([render(scene, seed) for seed, scene in enumerate(drawn)])
    from examples.es_en.train import sentences

    language = "spanish" if work.task == "translate" else "english"
    return [getattr(pair, language) for pair in sentences("train", count, 1)]


def _written(rows: Sequence[Any], folder: Path) -> Path:
    """The rows as a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"row": list(rows)}), folder / "in.parquet", row_group_size=20_000)
    return folder / "in.parquet"


def _batch(work: Work, source: Path, output: Path, repository: Path) -> Span:
    """From the first shard's beginning to the end of the last one."""
    flags = [part for name, value in work.request.items() for part in (f"--{name}", str(value))]
    command = [
        *(sys.executable, "-m", "triptych", "batch", work.task, "--column", "row"),
        *("--input", str(source), "--output", str(output), "--repository", str(repository)),
        *("--model", work.bundle, *(flag.replace("_", "-") for flag in flags)),
        *("--rows", "images" if work.field == "images" else "texts"),
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while not list(output.glob("_unfinished/*.begun-0")) and process.poll() is None:
            time.sleep(_POLL_S)
        began_s, before_s = time.time(), _cpu_seconds(process.pid)
        # Nothing is sampled meanwhile: looking at processes takes the cores that are measured.
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    summary = json.loads((output / "summary.json").read_text())
    assert (summary["rows"], summary["errors"]) == (summary["total_rows"], 0)
    seconds = max(part.stat().st_mtime for part in output.glob("part-*")) - began_s
    return Span(seconds, used.ru_utime + used.ru_stime - before_s)


def _cpu_seconds(pid: int) -> float:
    """Processor time of a process and its descendants so far."""
    process = psutil.Process(pid)
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return sum(one.user + one.system for one in times)


def _in_process(work: Work, rows: Sequence[Any], repository: Path, system: str) -> Span:
    """From the first process that has loaded the model to the last answer."""
    processes = 1 if system == "one process" else CORES
    answer = _answer_grouped if system == "grouped" else _answer
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(processes) as pool:
        parts = [rows[first::processes] for first in range(processes)]
        given = [(work, part, repository, CORES // processes) for part in parts]
        spans = pool.starmap(answer, given, chunksize=1)
    began_s, end_s, core_s = zip(*spans, strict=True)
    return Span(max(end_s) - min(began_s), sum(core_s))


def _answer(
    work: Work, rows: Sequence[Any], repository: Path, threads: int
) -> tuple[float, float, float]:
    """Answer rows in requests of `REQUEST_ROWS`, all of which are decoded together.

    Returns:
        When the model was loaded, when the last row was answered, and the processor time between.
    """
    bundle = newest_bundle(repository, work.bundle)
    local = open_local_model(repository, bundle, threads=threads)
    began_s, before_s = time.time(), time.process_time()
    task, limits = TASKS[work.task], TaskLimits(max_client_batch_size=REQUEST_ROWS)
    model = replace(local.model, task_limits=limits)
    submitted = []
    for start in range(0, len(rows), REQUEST_ROWS):
        part = list(rows[start : start + REQUEST_ROWS])
        fields = {**work.request, work.field: part}
        request: Any = operation(task.declaration, task.declaration.response, **fields).request
        plan = task.prepare(request, part if work.field == "images" else (), model)
        submitted.append((plan, [local.submit(call) for call in plan.calls]))
    for plan, futures in submitted:
        assert all(
            one.error is None for one in plan.finish([each.result() for each in futures]).data
        )
    return began_s, time.time(), time.process_time() - before_s


def _answer_grouped(
    work: Work, rows: Sequence[Any], repository: Path, threads: int
) -> tuple[float, float, float]:
    """The same in the requests of a worker of `triptych batch`, as if all rows were one shard."""
    job = Job(
        task=work.task, request=dict(work.request), field=work.field, model=work.bundle,
        version=newest_bundle(repository, work.bundle).version, column=None,
        output_format="jsonl", shard_rows=len(rows), seed=0,
    )  # fmt: skip
    local = open_model(job, WorkerSettings(repository, "", threads, Capacity()))
    requests = RowRequests(local, TASKS[work.task], template(job), work.field, job.seed)
    began_s, before_s = time.time(), time.process_time()
    items, _ = requests.answers([Row("", number, value) for number, value in enumerate(rows)])
    assert all(item.error is None for item in items)
    return began_s, time.time(), time.process_time() - before_s


def _title(entry: Mapping[str, Any]) -> str:
    named = ", ".join(f"{name} {value}" for name, value in entry["request"].items())
    return f"{entry['rows']} rows of {entry['task']}{f' ({named})' if named else ''}"


def _lines(entry: Mapping[str, Any]) -> list[list[str]]:
    return [
        [
            system,
            f"{median(rates):.0f}",
            f"{median(entry['core_s_per_1000_rows'][system]):.3f}",
            f"{entry['ratio'][system]:.3f}",
            f"{entry['cost_ratio'][system]:.3f}",
        ]
        for system, rates in entry["rows_per_s"].items()
    ]


if __name__ == "__main__":
    main()
