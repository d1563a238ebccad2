"""`make bench-encoders`: our encoders beside their peers, in process or through the gateway.

Engines take turns, round by round, in one run; medians are reported. Results are merged into one
JSON file: cells that a run did not measure keep the rows of the run that did.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.encoders import in_process, report, served
from benchmarks.encoders.models import MODELS
from benchmarks.harness import machine
from benchmarks.harness.machine import write_json

CACHE = Path(__file__).parents[1] / ".cache"
RESULTS = Path(__file__).parents[1] / "results" / "encoders.json"
LONGEST = 512
QUICK_LONGEST = 128
QUICK_ENGINES = (
    "triptych openvino-int8",
    "openvino int8",
    "transformers bf16",
    "infinity torch-fp32",
)
QUICK_COUNTED_S = 2.0
console = Console(highlight=False, width=180)
Row = dict[str, Any]


def main() -> int:
    """Measures every cell, prints tables, writes JSON."""
    arguments = parse_arguments()
    found = report.load(arguments.output)
    if arguments.markdown:
        print(report.page(found))
        return 0
    section = report.SERVED if arguments.served else report.IN_PROCESS
    run = time.strftime("%Y-%m-%d %H:%M:%S")
    about: Row = {"machine": machine.describe(), "rounds": arguments.rounds}
    before, rows = machine.load(), []
    for model in arguments.models:
        rows += [row | {"run": run} for row in measure(model, arguments)]
        console.print(report.table([row for row in rows if row["model"] == model], section))
        about["load"] = {"before": before, "after": machine.load()}
        half = report.merge_rows(found[section.name], section, run, about, rows)
        write_json(found | {section.name: half}, arguments.output)
    for line in report.ratio_lines(report.ratios(rows, section)):
        console.print(line)
    return 1 if any(row.get("failures") for row in rows) else 0


def measure(model: str, arguments: argparse.Namespace) -> list[Row]:
    """The measured rows of one model."""
    if arguments.served:
        return served.measure(
            model,
            choose_engines(served.ENGINES, arguments),
            arguments.in_flight,
            arguments.rounds,
            arguments.longest,
            arguments.works,
            QUICK_COUNTED_S if arguments.quick else served.LEAST_COUNTED_S,
            arguments.cache,
            console,
        )
    cells = [
        work
        for work in in_process.works(model, arguments.batches, arguments.longest)
        if not arguments.works or in_process.title(work) in arguments.works
    ]
    engines = choose_engines(in_process.ENGINES, arguments)
    return in_process.measure(model, engines, cells, arguments.rounds, arguments.cache, console)


def choose_engines(engines: tuple[str, ...], arguments: argparse.Namespace) -> list[str]:
    """The engines that the flags select: `--only` before `--quick`."""
    if arguments.only is None:
        return [name for name in engines if name in QUICK_ENGINES or not arguments.quick]
    return [name for name in engines if any(part in name for part in arguments.only)]


def parse_arguments() -> argparse.Namespace:
    """Flags of `python -m benchmarks.encoders`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--served", action="store_true", help="through HTTP, not in process")
    parser.add_argument("--quick", action="store_true", help="fewer engines, lengths and rounds")
    parser.add_argument("--models", nargs="+", choices=[*MODELS], default=[*MODELS])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--in-flight", nargs="+", type=int, default=[1, 8, 32, 128])
    parser.add_argument("--rounds", type=int, help="5 in process, 3 served; quick: 3 and 1")
    parser.add_argument("--longest", type=int, help="tokens of the longest texts: 512; quick: 128")
    parser.add_argument("--works", nargs="+", help="like '16 tokens' 'from jpeg': all by default")
    parser.add_argument("--only", nargs="+", help="engines with this in their names")
    parser.add_argument("--output", type=Path, default=RESULTS, help="merged into this file")
    parser.add_argument("--cache", type=Path, default=CACHE, help="checkpoints and bundles")
    parser.add_argument("--markdown", action="store_true", help="print the file's tables, and end")
    arguments = parser.parse_args()
    if arguments.rounds is None:
        rounds = {False: (5, 3), True: (3, 1)}[arguments.quick]
        arguments.rounds = rounds[arguments.served]
    if arguments.longest is None:
        arguments.longest = QUICK_LONGEST if arguments.quick else LONGEST
    return arguments


if __name__ == "__main__":
    sys.exit(main())
