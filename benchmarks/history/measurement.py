"""All figures of a group, as they are recorded in `benchmarks/results/history`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from rich.console import Console
from safetensors import safe_open

from benchmarks.harness.machine import processor
from benchmarks.history.columns import columns, graph_bytes
from examples.history.system import Ask, Group, Measure, System
from inference.process_limits import usable_cores

RESULTS = Path(__file__).parents[1] / "results" / "history"

Figures = dict[str, Any]
"""`items`, `cpus`, `processor` (earlier files lack it) and `systems`: checkpoint → `parameters`,
`megabytes` by form, `items_per_second`, `scores` and `curve`, the last three by column."""


def measure_group(group: Group, repository: Path, count: int, console: Console) -> Figures:
    """Measures every system of a group.

    Args:
        count: Held-out items a measure.

    Raises:
        SetupError: A checkpoint is missing.
    """
    systems = {one.checkpoint: _facts(one) for one in group.systems}
    for column, asks in columns(group, repository):
        for checkpoint, ask in asks.items():
            figures = systems[checkpoint]
            with console.status(f"{column}: {checkpoint}, {count} items a measure"):
                _score(group, ask, count, column, figures)
            figures["items_per_second"][column] = _rounded(ask.items_per_second)
            if column in ("ONNX", "int8"):
                figures["megabytes"][column] = _rounded(graph_bytes(ask.bundle) / 1e6)
    return {
        "items": count,
        "cpus": usable_cores(),
        "processor": processor(),
        "systems": systems,
    }


def _score(group: Group, ask: Ask, count: int, column: str, figures: Figures) -> None:
    points = group.curve.points if group.curve else ()
    for kind, measures in (("scores", group.measures), ("curve", points)):
        for measure in measures:
            _cell(figures[kind], measure)[column] = round(measure.score(ask, count), 2)


def _cell(rows: Figures, measure: Measure) -> Figures:
    cell: Figures = rows.setdefault(measure.name, {})
    return cell


def _facts(system: System) -> Figures:
    """What is known of a system without running it."""
    file = system.folder / "model.safetensors"
    if not file.is_file():
        return {}  # `columns` names the missing checkpoint
    with safe_open(file, "np") as tensors:
        shapes = [tensors.get_slice(name).get_shape() for name in tensors.keys()]  # noqa: SIM118
    return {
        "parameters": sum(math.prod(shape) for shape in shapes),
        "megabytes": {"checkpoint": _rounded(file.stat().st_size / 1e6)},
        "items_per_second": {},
        "scores": {},
        "curve": {},
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.3g}")


def record(group: Group, figures: Figures) -> None:
    """Writes a group's figures where `recorded` finds them."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    text = json.dumps(figures, indent=1, ensure_ascii=False)
    (RESULTS / f"{group.name}.json").write_text(text + "\n", encoding="utf-8")


def read_recorded(group: Group) -> Figures:
    """A group's figures of its last recorded run; without one, those of no system."""
    file = RESULTS / f"{group.name}.json"
    if not file.is_file():
        return {"items": 0, "cpus": 0, "systems": {}}
    figures: Figures = json.loads(file.read_text(encoding="utf-8"))
    return figures
