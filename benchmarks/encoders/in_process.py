"""Systems in processes of their own with two threads each, in interleaved rounds."""

from __future__ import annotations

import tempfile
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
from benchmarks.harness.closed_loop import interleave
from benchmarks.harness.system import System, SystemProcess

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
Row = dict[str, Any]


def start(engine: str, model: str, cache: Path) -> SystemProcess:
    """The process of one of `ENGINES`."""
    runtime, _, precision = engine.partition(" ")
    return SystemProcess("benchmarks.encoders.systems", System(runtime, precision), model, cache)


def measure_seconds(process: SystemProcess, work: Work) -> float:
    """Seconds that a system takes for one batch."""
    return float(process.run({"work": asdict(work), "save": None})["seconds"])


def compute_outputs(process: SystemProcess, work: Work) -> NDArray[Any]:
    """What a system returns for a batch."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "outputs.npy"
        process.run({"work": asdict(work), "save": str(file)})
        found: NDArray[Any] = np.load(file)
    return found


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
                processes[engine] = stack.enter_context(start(engine, model, cache))
        for work in cells:
            if work.batch * work.tokens > MOST_TOKENS:
                tokens = work.batch * work.tokens
                console.print(f"{model}, batch {work.batch}: {tokens} tokens > {MOST_TOKENS}")
                continue
            with console.status(f"{model} {title(work)}"):
                rows += measure_cell(model, work, processes, rounds)
    return rows


def measure_cell(
    model: str, work: Work, processes: dict[str, SystemProcess], rounds: int
) -> list[Row]:
    """Every round with every engine, in another order each; a warm-up run before each counted."""
    seconds: dict[str, list[float]] = {engine: [] for engine in processes}
    for number, engine in interleave(processes, rounds):
        process = processes[engine]
        measure_seconds(process, replace(work, seed=1000 + number))
        seconds[engine].append(measure_seconds(process, replace(work, seed=number)))
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
    """Name of the inputs in a table."""
    return f"{work.tokens} tokens" if work.kind == "text" else f"from {work.kind}"
