"""Export of full-size checkpoints with random weights: seconds and peak memory of each.

`python -m benchmarks.full_size` writes a checkpoint of each shape as `transformers` saves it, runs
`triptych export` on it in a process of its own, adds the result to
`benchmarks/results/full_size.json` and prints the table of that file in Markdown. Sizes are those
of published checkpoints; random weights cost what trained ones do.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.full_size.measure import Measured, Setting, measure
from benchmarks.full_size.shapes import SHAPES, make_checkpoint
from benchmarks.harness import machine
from benchmarks.harness.machine import markdown, write_json

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
    "without mapped files, GiB",
    "bundle, GiB",
    "load before",
)
_PRECISIONS = ("fp32", "bf16", "int8", "int8-fast")
Row = Mapping[str, Any]


def merge_rows(path: Path, machine: Row, measured: Iterable[Measured]) -> dict[str, Any]:
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
        f"{row['held_bytes'] / GIB:.2f}" if "held_bytes" in row else "–",  # older rows
        f"{row['bundle_bytes'] / GIB:.2f}",
        f"{row['load']:.1f}",
    )


def _phase_seconds(row: Row, titles: tuple[str, ...]) -> str:
    """Sum of the phases that begin so; a dash without any."""
    found = [phase["seconds"] for title, phase in row["phases"].items() if title.startswith(titles)]
    return f"{sum(found):.0f}" if found else "–"


RESULTS = Path(__file__).parents[1] / "results" / "full_size.json"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures the chosen shapes, smallest first; each result is kept as soon as it is there."""
    options = _parser().parse_args(arguments)
    if options.make:
        print(make_checkpoint(options.make[0], Path(options.make[1])))
        return
    described = {} if options.table else machine.describe()
    for name in () if options.table else options.names or SHAPES:
        for precision in options.precision:
            setting = Setting(name, precision, options.runtime)
            with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
                measured = measure(setting, Path(folder))
            merge_rows(options.output, described, [measured])
            print(table(row for row in read(options.output) if row["name"] == name), flush=True)
    print(table(read(options.output)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.full_size", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(SHAPES)}; default: all")
    parser.add_argument("--precision", nargs="*", default=["fp32", "int8"], help="fp32, int8, …")
    parser.add_argument("--runtime", default="onnxruntime", help="onnxruntime, openvino")
    parser.add_argument("--scratch", type=Path, help="parent of temporary folders (some GB)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="file of results")
    parser.add_argument("--table", action="store_true", help="print the file's table, run nothing")
    parser.add_argument("--make", nargs=2, metavar=("NAME", "FOLDER"), help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    main()
