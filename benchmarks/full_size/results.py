"""The file of results, one row a setting, and its table in Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.full_size.measure import Measured
from benchmarks.full_size.shapes import SHAPES
from benchmarks.harness.report import markdown, write_json

GIB = 1 << 30
KEYS = ("name", "precision", "runtime")
PHASES = {  # column → how the exporter's titles of its phases begin
    "read": ("reading",),
    "to ONNX": ("exporting",),
    "gate": ("verifying",),
    "int8 and its gate": ("lowering",),
}
COLUMNS = (
    "checkpoint",
    "parameters",
    "precision",
    "wall, s",
    "CPU, s",
    *(f"{phase}, s" for phase in PHASES),
    "peak, GiB",
    "bundle, GiB",
    "load before",
)
_PRECISIONS = ("fp32", "bf16", "int8", "int8-fast")
Row = Mapping[str, Any]


def merged(path: Path, machine: Row, measured: Iterable[Measured]) -> dict[str, Any]:
    """Writes new rows into the file, in place of those of the same settings; what it holds now."""
    rows = {_key(row): row for row in read(path)}
    rows |= {_key(row): row for row in map(asdict, measured)}
    content = {"machine": dict(machine), "rows": sorted(rows.values(), key=_order)}
    write_json(content, path)
    return content


def read(path: Path) -> Sequence[Row]:
    """The rows of a file; none if there is no file."""
    if not path.is_file():
        return []
    rows: list[Row] = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return rows


def table(rows: Iterable[Row]) -> str:
    """The rows in Markdown."""
    return markdown(COLUMNS, map(_cells, rows))


def _key(row: Row) -> tuple[str, ...]:
    return tuple(str(row[key]) for key in KEYS)


def _order(row: Row) -> tuple[int, str, int]:
    return list(SHAPES).index(row["name"]), row["runtime"], _PRECISIONS.index(row["precision"])


def _cells(row: Row) -> tuple[str, ...]:
    precision = row["precision"]
    if row["runtime"] != "onnxruntime":
        precision += f", {row['runtime']}"
    start = (row["name"], f"{row['parameters'] / 1e6:.0f} M", precision)
    if row["error"]:
        return (*start, row["error"], *[""] * (len(COLUMNS) - len(start) - 1))
    return (
        *start,
        f"{row['seconds']:.0f}",
        f"{row['cpu_seconds']:.0f}",
        *(_phase_seconds(row, titles) for titles in PHASES.values()),
        f"{row['peak_bytes'] / GIB:.1f}",
        f"{row['bundle_bytes'] / GIB:.2f}",
        f"{row['load']:.1f}",
    )


def _phase_seconds(row: Row, titles: tuple[str, ...]) -> str:
    """Sum of the phases that begin so; a dash without any."""
    found = [phase["seconds"] for title, phase in row["phases"].items() if title.startswith(titles)]
    return f"{sum(found):.0f}" if found else "–"
