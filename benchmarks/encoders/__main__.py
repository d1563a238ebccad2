"""`make bench-encoders`: our encoders beside OpenVINO, ONNX Runtime and `transformers`, in one run.

Engines take turns, round by round, each in a process of its own with two threads; medians are
reported.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.encoders.models import MODELS, Work
from benchmarks.speed import machine

CACHE = Path(__file__).parents[1] / ".cache"
RESULTS = Path(__file__).parents[1] / "results" / "encoders.json"
ENGINES = (
    "triptych openvino-int8",
    "triptych openvino-bf16",
    "triptych onnxruntime-int8",
    "triptych onnxruntime-fp32",
    "openvino int8",
    "openvino bf16",
    "onnxruntime fp32",
    "transformers bf16",
    "transformers fp32",
)
PAIRS = (
    ("triptych openvino-int8", "openvino int8"),
    ("triptych openvino-bf16", "openvino bf16"),
    ("triptych onnxruntime-int8", "openvino int8"),
    ("triptych onnxruntime-fp32", "onnxruntime fp32"),
)
REST_S = 0.25
"""Between two runs, so that no engine's spinning threads are still warm in the next one's run."""
console = Console(highlight=False, width=160)
Row = dict[str, Any]


class Process:
    """One worker: a process with an engine and a loaded model, idle between runs."""

    def __init__(self, engine: str, model: str) -> None:
        kind, _, precision = engine.partition(" ")
        CACHE.mkdir(exist_ok=True)
        self._log = (CACHE / f"encoders-{model}-{kind}-{precision}.log").open("w")
        command = [sys.executable, "-m", "benchmarks.encoders.worker", kind, precision, model]
        self._process = subprocess.Popen(
            [*command, str(CACHE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._read()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._log.close()

    def seconds(self, work: Work) -> float:
        """One batch."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(work)) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> float:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a worker ended; its output is in {self._log.name}")
        return float(json.loads(line)["seconds"])


def main() -> int:
    """Measures every cell, prints tables, writes JSON."""
    arguments = parse_arguments()
    engines = [engine for engine in ENGINES if arguments.only in engine]
    rows: list[Row] = []
    before = machine.load()
    for model in arguments.models:
        with ExitStack() as stack:
            processes = {}
            for engine in engines:
                with console.status(f"loading {model} into {engine}"):
                    processes[engine] = stack.enter_context(Process(engine, model))
            for work in works(model, arguments.batches):
                with console.status(f"{model} {title(work)}"):
                    rows += play(model, work, processes, arguments.rounds)
        console.print(table([row for row in rows if row["model"] == model], engines))
    found = {"machine": machine.described(), "rounds": arguments.rounds, "rows": rows}
    found["ratios"] = ratios(rows)
    found["load"] = {"before": before, "after": machine.load()}
    console.print_json(json.dumps(found["ratios"]))
    if arguments.output:
        arguments.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def parse_arguments() -> argparse.Namespace:
    """Flags of `python -m benchmarks.encoders`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=[*MODELS], default=[*MODELS])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="engines whose name contains this")
    parser.add_argument("--output", type=Path, default=RESULTS)
    return parser.parse_args()


def works(model: str, batches: Sequence[int]) -> Iterator[Work]:
    """The cells of a model."""
    for tokens in MODELS[model].lengths:
        yield from (Work("text", batch, tokens) for batch in batches)
    if not MODELS[model].lengths:
        yield from (Work("pixels", batch) for batch in batches)
        yield from (Work("jpeg", batch) for batch in batches)


def play(model: str, work: Work, processes: dict[str, Process], rounds: int) -> list[Row]:
    """Every round with every engine, in another order each; a warm-up run before each counted."""
    seconds: dict[str, list[float]] = {engine: [] for engine in processes}
    order, shuffle = list(processes), random.Random(0)
    for number in range(rounds):
        shuffle.shuffle(order)
        for engine in order:
            time.sleep(REST_S)
            processes[engine].seconds(replace(work, seed=1000 + number))
            seconds[engine].append(processes[engine].seconds(replace(work, seed=number)))
    return [
        {
            "model": model,
            "work": title(work),
            "batch": work.batch,
            "engine": engine,
            "per_second": work.batch / median(times),
            "rounds": [round(work.batch / spent, 2) for spent in times],
        }
        for engine, times in seconds.items()
    ]


def title(work: Work) -> str:
    """What is encoded."""
    return f"{work.tokens} tokens" if work.kind == "text" else f"from {work.kind}"


def ratios(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Of each pair of engines, over all cells that both have: geometric mean, least, most."""
    speeds = {(r["model"], r["work"], r["batch"], r["engine"]): r["per_second"] for r in rows}
    found = {}
    for ours, theirs in PAIRS:
        each = {
            cell[:3]: speed / speeds[*cell[:3], theirs]
            for cell, speed in speeds.items()
            if cell[3] == ours and (*cell[:3], theirs) in speeds
        }
        if each:
            least = min(each, key=lambda cell: each[cell])
            found[f"{ours} / {theirs}"] = {
                "geometric_mean": round(geometric_mean(each.values()), 3),
                "least": round(each[least], 3),
                "least_at": " ".join(map(str, least)),
                "most": round(max(each.values()), 3),
            }
    return found


def table(rows: Sequence[Row], engines: Sequence[str]) -> Table:
    """Items a second: a line a cell, a column an engine."""
    made = Table("model", "work", "batch", *engines, title="items per second, medians")
    for cell in dict.fromkeys((row["model"], row["work"], row["batch"]) for row in rows):
        speeds = {
            row["engine"]: row["per_second"]
            for row in rows
            if (row["model"], row["work"], row["batch"]) == cell
        }
        made.add_row(*map(str, cell), *(f"{speeds[engine]:.1f}" for engine in engines))
    return made


if __name__ == "__main__":
    sys.exit(main())
