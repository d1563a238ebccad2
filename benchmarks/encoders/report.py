"""Rows to ratios, tables for the console, Markdown for docs/speed.md, and one file of all runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from benchmarks.encoders.in_process import compute_outputs, start
from benchmarks.encoders.models import MODELS, Item, Work
from benchmarks.encoders.servers import Server
from benchmarks.harness import machine as harness

REFERENCE = "transformers fp32"
LEAST_COSINE = {"fp32": 0.99, "bf16": 0.99, "int8": 0.9}
"""Of the worst item; below, the measurement is refused. With random weights int8 costs more than
with a trained model's, so its cosine is stated with the speeds."""
MIXED_TOKENS = (7, 9, 17, 20, 33, 48, 62)
Vectors = Sequence[NDArray[Any]]


def probes(model: str, longest: int) -> list[Work]:
    """One item each: texts of every measured length and of others, or JPEG files."""
    lengths = MODELS[model].lengths
    if not lengths:
        return [Work("jpeg", 1, seed=seed) for seed in range(8)]
    tokens = [length for length in (*lengths, *MIXED_TOKENS) if length <= longest]
    return [Work("text", 1, length, seed) for seed, length in enumerate(tokens)]


def item(work: Work) -> Item:
    """What is sent for a probe."""
    inputs = work.inputs()
    if isinstance(inputs, list):
        return inputs[0]
    return " ".join(f"w{number}" for number in inputs[0, 1:-1])


def reference(model: str, works: Sequence[Work], cache: Path) -> Vectors:
    """The vectors of `transformers`, in a process that ends afterwards."""
    with start(REFERENCE, model, cache) as process:
        return [compute_outputs(process, work)[0] for work in works]


def check(engine: str, server: Server, works: Sequence[Work], expected: Vectors) -> dict[str, Any]:
    """Compare a server's vectors, all requested at once, so that they may share batches.

    Raises:
        RuntimeError: a vector is too far from the reference.
    """
    with ThreadPoolExecutor(len(works)) as pool:
        found = list(pool.map(server.vector, map(item, works)))
    agreement = compare(found, expected)
    least = LEAST_COSINE[engine.rpartition("-")[2]]
    if agreement["least_cosine"] < least:
        raise RuntimeError(f"{engine} differs from {REFERENCE}: {agreement}, allowed {least}")
    return dict(agreement)


def compare(found: Vectors, expected: Vectors) -> Mapping[str, float]:
    """Cosines of each pair, and how many vectors are nearest to their own reference."""
    cosines = _units(found) @ _units(expected).T
    own = np.diag(cosines)
    return {
        "least_cosine": round(float(own.min()), 5),
        "mean_cosine": round(float(own.mean()), 5),
        "nearest_to_own": round(float(np.mean(cosines.argmax(1) == np.arange(len(own)))), 3),
    }


def _units(vectors: Vectors) -> NDArray[np.float64]:
    stacked = np.stack(vectors).astype(np.float64)
    return np.asarray(stacked / np.linalg.norm(stacked, axis=1, keepdims=True))


Row = dict[str, Any]
NAMES = {
    "bert-base": "BERT-base",
    "minilm-l6": "MiniLM-L6",
    "vit-b16": "ViT-B/16",
    "clip-b32": "CLIP B/32",
}
OURS = "triptych"
PARTS = ("engine", "triton", "gateway", "supervisor", "server", "client")
"""Processes in the order in which their CPU time is shown."""


@dataclass(frozen=True)
class Section:
    """One half of the report.

    Attributes:
        name: Its key in the JSON file.
        level: The field of a row that holds its batch, or its requests in flight.
        pairs: Engines that are compared, ours first.
    """

    name: str
    level: str
    pairs: tuple[tuple[str, str], ...]

    def cell(self, row: Row) -> tuple[str, str, int]:
        """What a row was measured on."""
        return row["model"], row["work"], row[self.level]


IN_PROCESS = Section(
    "in_process",
    "batch",
    (
        ("triptych openvino-int8", "openvino int8"),
        ("triptych openvino-bf16", "openvino bf16"),
        ("triptych onnxruntime-int8", "openvino int8"),
        ("triptych onnxruntime-fp32", "onnxruntime fp32"),
        ("triptych openvino-int8", "transformers fp32"),
        ("triptych openvino-int8", "transformers bf16"),
    ),
)
SERVED = Section(
    "served",
    "in_flight",
    (
        ("triptych openvino-int8", "infinity torch-fp32"),
        ("triptych openvino-int8", "infinity torch-bf16"),
        ("triptych openvino-int8", "infinity optimum-fp32"),
        ("triptych openvino-bf16", "infinity torch-bf16"),
        ("triptych onnxruntime-fp32", "infinity torch-fp32"),
        ("triptych onnxruntime-fp32", "infinity optimum-fp32"),
    ),
)
SECTIONS = (IN_PROCESS, SERVED)


def load(file: Path) -> dict[str, Any]:
    """The report of earlier runs; an empty one if there is none."""
    if not file.is_file():
        return {section.name: {"runs": {}, "rows": []} for section in SECTIONS}
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def merge_rows(
    part: dict[str, Any], section: Section, run: str, about: Row, rows: list[Row]
) -> Row:
    """One half with new rows in the place of those of the same cell and engine.

    Args:
        part: `runs` (by name: the machine, the load) and `rows`.
        section: Which half.
        run: The new run's name; rows keep the name of theirs.
        about: What is noted about the new run.
        rows: Its rows.
    """
    new = [row | {"run": run} for row in rows]
    measured = {(section.cell(row), row["engine"]) for row in new}
    kept = [row for row in part["rows"] if (section.cell(row), row["engine"]) not in measured]
    everything = sorted(kept + new, key=lambda row: order(row, section))
    used = {row["run"] for row in everything}
    runs = {name: noted for name, noted in (part["runs"] | {run: about}).items() if name in used}
    return {"runs": runs, "rows": everything, "ratios": ratios(everything, section)}


def order(row: Row, section: Section) -> tuple[Any, ...]:
    """Sorts rows: models as in `NAMES`, short texts first; engines keep their order."""
    first = row["work"].split()[0]
    length = int(first) if first.isdigit() else 10_000
    return [*NAMES].index(row["model"]), length, row["work"], row[section.level]


def ratios(rows: Sequence[Row], section: Section) -> dict[str, dict[str, Any]]:
    """Of each pair, over the cells that one run measured for both: mean, least, most."""
    speeds = {(section.cell(row), row["run"], row["engine"]): row["per_second"] for row in rows}
    found = {}
    for ours, theirs in section.pairs:
        each = {
            cell: speed / speeds[cell, run, theirs]
            for (cell, run, engine), speed in speeds.items()
            if engine == ours and speeds.get((cell, run, theirs))
        }
        if each:
            least = min(each, key=lambda cell: each[cell])
            found[f"{ours} / {theirs}"] = {
                "geometric_mean": round(geometric_mean(each.values()), 3),
                "least": round(each[least], 3),
                "least_at": " ".join(map(str, least)),
                "most": round(max(each.values()), 3),
                "cells": len(each),
            }
    return found


def table(rows: Sequence[Row], section: Section) -> Table:
    """The table for a console."""
    header, lines = cells(rows, section)
    made = Table(*header, title="items per second, medians")
    for line in lines:
        made.add_row(*line)
    return made


def markdown(rows: Sequence[Row], section: Section) -> str:
    """The table in Markdown, for docs/speed.md."""
    return harness.markdown(*cells(rows, section))


def cells(rows: Sequence[Row], section: Section) -> tuple[list[str], list[list[str]]]:
    """A header and a line for each cell; an engine is a column."""
    engines = list(dict.fromkeys(row["engine"] for row in rows))
    by_cell: dict[tuple[str, str, int], dict[str, Row]] = {}
    for row in rows:
        by_cell.setdefault(section.cell(row), {})[row["engine"]] = row
    lines = [
        [
            f"{NAMES[model]}, {work}, {level}",
            *(_entry(found.get(engine), section) for engine in engines),
            *_comparison(found, section),
        ]
        for (model, work, level), found in by_cell.items()
    ]
    what = "items/s" if section is IN_PROCESS else "items/s (p50 / p99 ms)"
    last = [] if section is IN_PROCESS else [" / ".join(section.pairs[0]), "our CPU ms a request"]
    return [f"{what}, by {section.level.replace('_', ' ')}", *engines, *last], lines


def _entry(row: Row | None, section: Section) -> str:
    if row is None:
        return "–"
    speed = f"{row['per_second']:.{0 if row['per_second'] >= 20 else 1}f}"
    if section is IN_PROCESS:
        return speed
    failed = f", {row['failures']} failed" if row["failures"] else ""
    return f"{speed} ({row['p50_ms']:.0f} / {row['p99_ms']:.0f}{failed})"


def _comparison(found: dict[str, Row], section: Section) -> list[str]:
    """Through the gateway: the first pair's ratio in one run, and our CPU time by process."""
    if section is IN_PROCESS:
        return []
    own = next((row for engine, row in found.items() if engine.startswith(OURS)), None)
    compared = ratios([*found.values()], Section(section.name, section.level, section.pairs[:1]))
    ratio = [f"{values['geometric_mean']:.1f}" for values in compared.values()]
    return [*(ratio or ["–"]), cpu_text(own["cpu_ms"]) if own else "–"]


def cpu_text(cpu_ms: dict[str, float]) -> str:
    """CPU milliseconds by process, those over nothing."""
    shown = ((part, cpu_ms.get(part, 0.0)) for part in PARTS)
    return ", ".join(f"{part} {ms:.1f}" for part, ms in shown if ms >= 0.05)


def ratio_lines(found: dict[str, dict[str, Any]]) -> Iterable[str]:
    """A line for each pair of engines."""
    for pair, values in found.items():
        yield (
            f"- {pair}: {values['geometric_mean']:.2f} (geometric mean of {values['cells']}), "
            f"least {values['least']:.2f} ({values['least_at']}), most {values['most']:.2f}"
        )


def page(report: dict[str, Any]) -> str:
    """Both sections in Markdown."""
    parts = []
    for section in SECTIONS:
        part = report[section.name]
        if part["rows"]:
            lines = "\n".join(ratio_lines(ratios(part["rows"], section)))
            parts.append(f"{markdown(part['rows'], section)}\n\n{lines}")
    return "\n\n".join(parts)
