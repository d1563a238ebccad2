"""Export of full-size checkpoints with random weights: seconds and peak memory of each.

`python -m benchmarks.full_size` writes a checkpoint of each shape as `transformers` saves it, runs
`triptych export` on it in a process of its own, adds the result to
`benchmarks/results/full_size.json` and prints the table of that file in Markdown. Sizes are those
of published checkpoints; random weights cost what trained ones do.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.full_size.folders import make_checkpoint
from benchmarks.full_size.measure import Setting, measure
from benchmarks.full_size.results import merged, read, table
from benchmarks.full_size.shapes import SHAPES
from benchmarks.harness import machine

RESULTS = Path(__file__).parents[1] / "results" / "full_size.json"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures the chosen shapes, smallest first; each result is kept as soon as it is there."""
    options = _parser().parse_args(arguments)
    if options.make:
        print(make_checkpoint(options.make[0], Path(options.make[1])))
        return
    described = {} if options.table else machine.described()
    for name in () if options.table else options.names or SHAPES:
        for precision in options.precision:
            setting = Setting(name, precision, options.runtime)
            with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
                measured = measure(setting, Path(folder))
            merged(options.output, described, [measured])
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
