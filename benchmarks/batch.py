"""`triptych batch` beside the same engine in one process: rows a second, in interleaved rounds.

`python -m benchmarks.batch --repository model_repository` takes the examples' bundles. The engine
in process is the faster of one process with all cores and one process a core; the rows are in its
memory, and their answers are dropped. Starting and loading are left out on both sides.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psutil

from benchmarks.harness.machine import described, load
from benchmarks.harness.report import markdown, write_json
from benchmarks.harness.rounds import interleave
from inference.bundle.reader import newest_bundle
from inference.tasks import TASKS
from inference.tasks.shared.limits import TaskLimits
from serving.local_model import open_local_model
from triptych.operation import operation

RESULTS = Path(__file__).parent / "results" / "batch.json"
REQUEST_ROWS = 32
_POLL_S, _SAMPLE_S = 0.005, 0.05
CORES = len(os.sched_getaffinity(0))


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
    Work("example-es-en", "translate", "texts", 24_000, {}),
    Work("example-es-en", "translate", "texts", 12_000, {"num_beams": 4}),
    Work("example-bert-embed", "embed", "texts", 60_000, {}),
    Work("example-captioner", "caption", "images", 6_000, {}),
)
SYSTEMS = ("one process", "a process a core", "batch")


def main() -> None:
    """Measure, print a table, and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repository", type=Path, default=Path("model_repository"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--works", type=int, nargs="*", default=range(len(WORKS)))
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of rows")
    given = parser.parse_args()
    entries: list[dict[str, Any]] = []
    for work in (WORKS[number] for number in given.works):
        with tempfile.TemporaryDirectory() as folder:
            entries.append(measure(work, given, Path(folder)))
        print(json.dumps(entries[-1]), flush=True)
    write_json({"machine": described(), "load": load(), "works": entries}, RESULTS)
    header = ("task", *SYSTEMS, "batch ÷ best", "core-seconds, ÷ least")
    print(markdown(header, [_line(entry) for entry in entries]))


def measure(work: Work, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Rows a second of each system, and the median of the rounds' ratios."""
    rows = _rows(work, int(work.rows * given.scale))
    source = _written(rows, folder)
    found: dict[str, list[float]] = {system: [] for system in SYSTEMS}
    used: dict[str, list[float]] = {system: [] for system in SYSTEMS}
    for number, system in interleave(SYSTEMS, given.rounds):
        if system == "batch":
            span = _batch(work, source, folder / f"out-{number}", given.repository)
        else:
            processes = CORES if system == "a process a core" else 1
            span = _in_process(work, rows, given.repository, processes)
        found[system].append(len(rows) / span.seconds)
        used[system].append(1000 * span.core_s / len(rows))
        shown = f"{found[system][-1]:.0f} rows/s, {used[system][-1]:.2f} core-seconds per 1000 rows"
        print(f"{work.task} {system}: {shown}", file=sys.stderr, flush=True)
    best = [max(pair) for pair in zip(found["one process"], found["a process a core"], strict=True)]
    least = [min(pair) for pair in zip(used["one process"], used["a process a core"], strict=True)]
    return {
        "bundle": work.bundle, "task": work.task, "request": dict(work.request), "rows": len(rows),
        "rows_per_s": found, "core_s_per_1000_rows": used,
        "ratio": median(own / other for own, other in zip(found["batch"], best, strict=True)),
        "cost_ratio": median(own / other for own, other in zip(used["batch"], least, strict=True)),
    }  # fmt: skip


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
        began_s, before = time.time(), _cpu_seconds(process.pid)
        used = dict(before)
        while process.poll() is None:
            used |= _cpu_seconds(process.pid)
            time.sleep(_SAMPLE_S)
    summary = json.loads((output / "summary.json").read_text())
    assert (summary["rows"], summary["errors"]) == (summary["total_rows"], 0)
    seconds = max(part.stat().st_mtime for part in output.glob("part-*")) - began_s
    return Span(seconds, sum(used.values()) - sum(before.values()))


def _cpu_seconds(pid: int) -> dict[int, float]:
    """Processor time of a process and its descendants so far, Ray's own among them."""
    found = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        for one in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = one.cpu_times()
                found[one.pid] = times.user + times.system
    return found


def _in_process(work: Work, rows: Sequence[Any], repository: Path, processes: int) -> Span:
    """From the first process that has loaded the model to the last answer."""
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(processes) as pool:
        parts = [rows[first::processes] for first in range(processes)]
        given = [(work, part, repository, CORES // processes) for part in parts]
        spans = pool.starmap(_answer, given, chunksize=1)
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
    submitted = []
    for start in range(0, len(rows), REQUEST_ROWS):
        part = list(rows[start : start + REQUEST_ROWS])
        fields = {**work.request, work.field: part}
        request: Any = operation(task.declaration, task.declaration.response, **fields).request
        plan = task.prepare(request, part if work.field == "images" else (), local.model, limits)
        submitted.append((plan, [local.submit(call) for call in plan.calls]))
    for plan, futures in submitted:
        assert all(
            one.error is None for one in plan.finish([each.result() for each in futures]).data
        )
    return began_s, time.time(), time.process_time() - before_s


def _line(entry: Mapping[str, Any]) -> list[str]:
    rates = [f"{median(entry['rows_per_s'][system]):.0f}" for system in SYSTEMS]
    named = ", ".join(f"{name} {value}" for name, value in entry["request"].items())
    return [
        f"{entry['task']}{f' ({named})' if named else ''}",
        *rates,
        f"{entry['ratio']:.2f}",
        f"{entry['cost_ratio']:.2f}",
    ]


if __name__ == "__main__":
    main()
