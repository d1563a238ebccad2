"""Engines in processes of their own with two threads each; they take turns, round by round."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.encoders.models import MODELS, Work

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
MOST_TOKENS = 8192
"""Of one batch: at 32 × 512 tokens an engine in float32 takes over ten seconds a run, and no items
a second more than at 8 × 512."""
REST_S = 0.25
"""Between two runs, so that no engine's spinning threads are still warm in the next one's run."""
Row = dict[str, Any]


class Process:
    """One worker: a process with an engine and a loaded model, idle between runs.

    Args:
        engine: One of `ENGINES`.
        model: One of `MODELS`.
        cache: The folder that models are kept in.

    Raises:
        RuntimeError: the worker ended.
    """

    def __init__(self, engine: str, model: str, cache: Path) -> None:
        kind, _, precision = engine.partition(" ")
        cache.mkdir(exist_ok=True)
        self._log = (cache / f"encoders-{model}-{kind}-{precision}.log").open("w")
        command = [sys.executable, "-m", "benchmarks.encoders.worker", kind, precision, model]
        self._process = subprocess.Popen(
            [*command, str(cache)],
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
        return self._ask(work, save=None)

    def outputs(self, work: Work) -> NDArray[Any]:
        """What the engine returns for a batch."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "outputs.npy"
            self._ask(work, save=str(file))
            found: NDArray[Any] = np.load(file)
        return found

    def _ask(self, work: Work, save: str | None) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"work": asdict(work), "save": save}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> float:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a worker ended; its output is in {self._log.name}")
        return float(json.loads(line)["seconds"])


def works(model: str, batches: Sequence[int], longest: int) -> Iterator[Work]:
    """The cells of a model, without texts over `longest` tokens."""
    for tokens in MODELS[model].lengths:
        if tokens <= longest:
            yield from (Work("text", batch, tokens) for batch in batches)
    if not MODELS[model].lengths:
        yield from (Work("pixels", batch) for batch in batches)
        yield from (Work("jpeg", batch) for batch in batches)


def measure(
    model: str,
    engines: Sequence[str],
    cells: Sequence[Work],
    rounds: int,
    cache: Path,
    console: Console,
) -> list[Row]:
    """Rows of one model; a batch of too many tokens is left out, and why is printed."""
    rows: list[Row] = []
    with ExitStack() as stack:
        processes = {}
        for engine in engines:
            with console.status(f"loading {model} into {engine}"):
                processes[engine] = stack.enter_context(Process(engine, model, cache))
        for work in cells:
            if work.batch * work.tokens > MOST_TOKENS:
                tokens = work.batch * work.tokens
                console.print(f"{model}, batch {work.batch}: {tokens} tokens > {MOST_TOKENS}")
                continue
            with console.status(f"{model} {title(work)}"):
                rows += play(model, work, processes, rounds)
    return rows


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
            "per_second": round(work.batch / median(times), 2),
            "rounds": [round(work.batch / spent, 2) for spent in times],
        }
        for engine, times in seconds.items()
    ]


def title(work: Work) -> str:
    """What is encoded."""
    return f"{work.tokens} tokens" if work.kind == "text" else f"from {work.kind}"
