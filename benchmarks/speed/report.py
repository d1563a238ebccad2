"""From timings to a table, ratios, JSON and a plot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.harness.machine import write_json
from benchmarks.speed.work import Result, Timing

OURS = "triptych"
REFERENCE = "transformers"


def row(result: Result) -> dict[str, Any]:
    """One system in one cell: medians over its rounds."""
    timings = result.timings
    return {
        "model": result.cell.model,
        "work": result.cell.title,
        "batch": result.cell.batch,
        "beams": result.cell.beams,
        "engine": result.system.label,
        "contender": result.system.name,
        "tokens_per_second": median(t.tokens_per_second for t in timings),
        "rounds": [round(t.tokens_per_second, 1) for t in timings],
        "first_ms_p50": percentile(timings, "first_ms", 50),
        "gap_ms_p50": percentile(timings, "gaps_ms", 50),
        "gap_ms_p99": percentile(timings, "gaps_ms", 99),
        "cpu_cores": median(t.cpu_seconds / t.seconds for t in timings),
        "peak_mib": max(t.peak_bytes for t in timings) / 2**20,
    }


def same_tokens(result: Result, results: Iterable[Result]) -> float | None:
    """Share of a system's tokens that are those of `transformers`, up to each answer's first other.

    None where answers are not kept.
    """
    theirs = next((each for each in results if each.system.runtime == REFERENCE), None)
    if theirs is None or not result.timings[0].answers:
        return None
    same = total = 0
    for timing, wanted in zip(result.timings, theirs.timings, strict=True):
        for found, tokens in zip(timing.answers, wanted.answers, strict=True):
            pairs = zip(found, tokens, strict=True)
            same += sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            total += len(tokens)
    return same / total


def percentile(timings: Iterable[Timing], field: str, rank: float) -> float | None:
    """Over all rounds together; None without streaming."""
    values = [value for timing in timings for value in getattr(timing, field)]
    return float(np.percentile(values, rank)) if values else None


def ratios(rows: Sequence[dict[str, Any]], ours: str, theirs: str) -> dict[str, float]:
    """Ours over theirs in tokens a second, cell by cell; of each its best number of threads."""
    speeds: dict[tuple[str, str], float] = {}
    for each in rows:
        key = place(each), each["contender"]
        speeds[key] = max(each["tokens_per_second"], speeds.get(key, 0.0))
    return {
        cell: speeds[cell, ours] / speeds[cell, theirs]
        for cell in dict.fromkeys(map(place, rows))
        if (cell, ours) in speeds and (cell, theirs) in speeds
    }


def place(row: dict[str, Any]) -> str:
    """The cell that a row belongs to."""
    search = "greedy" if row["beams"] == 1 else f"beam {row['beams']}"
    return f"{row['model']} {row['work']}, {search}, batch {row['batch']}"


def comparisons(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Our systems against each other one, full-size models and the small examples apart."""
    small = [row for row in rows if row["model"].startswith("example-")]
    large = [row for row in rows if row not in small]
    return _comparisons(large) | {
        f"{pair}, examples": values for pair, values in _comparisons(small).items()
    }


def _comparisons(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    engines = {row["contender"] for row in rows}
    found = {}
    for ours in sorted(e for e in engines if e.startswith(OURS)):
        for theirs in sorted(e for e in engines if not e.startswith(OURS)):
            cells = ratios(rows, ours, theirs)
            greedy = [ratio for cell, ratio in cells.items() if "greedy" in cell]
            if cells:
                found[f"{ours} / {theirs}"] = {
                    "geometric_mean": geometric_mean(cells.values()),
                    "least": min(cells.values()),
                    "greedy": geometric_mean(greedy) if greedy else None,
                    "cells": cells,
                }
    return found


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """Tokens a second: one line a cell, one column a system.

    Of questions about pictures, the share of tokens that are those of `transformers` is behind `=`.
    """
    engines = list(dict.fromkeys(row["engine"] for row in rows))
    shown = Table("tokens/s (first token ms · gap p50/p99 ms)", *engines)
    for cell in dict.fromkeys(map(place, rows)):
        by_engine = {row["engine"]: row for row in rows if place(row) == cell}
        shown.add_row(cell, *(_entry(by_engine.get(engine)) for engine in engines))
    return shown


def _entry(row: dict[str, Any] | None) -> str:
    if row is None:
        return "–"
    speed = f"{row['tokens_per_second']:.0f}"
    if row["gap_ms_p50"] is None:
        return speed
    same = "" if row.get("same_tokens") is None else f" = {row['same_tokens']:.0%}"
    gaps = f"{row['gap_ms_p50']:.1f}/{row['gap_ms_p99']:.1f}"
    return f"{speed} ({row['first_ms_p50']:.0f} · {gaps}){same}"


def comparison_table(found: dict[str, dict[str, Any]]) -> Table:
    """The ratios' means."""
    shown = Table("ratio of tokens/s", "geometric mean", "least", "greedy only")
    for pair, values in found.items():
        numbers = (values[name] for name in ("geometric_mean", "least", "greedy"))
        shown.add_row(pair, *("–" if number is None else f"{number:.2f}" for number in numbers))
    return shown


def served_table(rows: Sequence[dict[str, Any]]) -> Table:
    """In process beside through the gateway."""
    parts = ("engine", "triton", "gateway", "supervisor", "client")
    shown = Table(
        *("in flight", "in process", "over HTTP", "kept", "p50 / p99 ms", "client's CPU"),
        f"CPU ms a request: in process; {', '.join(parts)}",
    )
    for row in rows:
        http, engine = row["over_http"], row["in_process"]
        cpu_ms = http["cpu_ms_per_request"]
        shown.add_row(
            str(row["in_flight"]),
            f"{engine['tokens_per_second']:.0f} tokens/s",
            f"{http['tokens_per_second']:.0f} tokens/s",
            f"{row['kept']:.0%}",
            f"{http['latency_ms_p50']:.0f} / {http['latency_ms_p99']:.0f}",
            f"{row['client_cpu_share']:.1%}",
            f"{engine['cpu_ms_per_request']['client']:.1f}; "
            + ", ".join(f"{cpu_ms.get(part, 0):.1f}" for part in parts),
        )
    return shown


def poisson_table(found: dict[str, Any]) -> Table:
    """Arrivals at random, three ways."""
    shown = Table(f"{found['per_second']} arrivals/s", "tokens/s", "mean ms", "p50 ms", "p95 ms")
    for name, row in found["rows"].items():
        shown.add_row(name, *(f"{value:.0f}" for value in row.values()))
    return shown


def roofline_table(steps: Sequence[dict[str, Any]]) -> Table:
    """Steps against what memory allows, and where their time goes."""
    shown = Table("step", "MB read", "bound ms", "step ms", "of roofline", "operators")
    for step in steps:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in step["operators"].items())
        shown.add_row(
            f"{step['model']} {step['precision']}, {step['rows']} rows",
            *(f"{step[name]:.1f}" for name in ("megabytes_read", "bound_ms", "step_ms")),
            f"{step['of_roofline']:.0%}",
            shares,
        )
    return shown


def write(report: dict[str, Any], folder: Path) -> None:
    """`speed.json` and `speed.png`."""
    write_json(report, folder / "speed.json")
    plot(report["rows"], folder / "speed.png")


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Bars of tokens a second, one panel a model and search."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = list(dict.fromkeys((r["model"], r["work"], r["beams"]) for r in rows))
    engines = list(dict.fromkeys(row["engine"] for row in rows))
    colours = dict(zip(engines, pyplot.colormaps["tab10"].colors, strict=False))
    width = 0.85 / len(engines)
    figure, axes = pyplot.subplots(
        len(panels), 1, figsize=(9, 2.6 * len(panels)), squeeze=False, layout="constrained"
    )
    for axis, panel in zip(axes[:, 0], panels, strict=True):
        mine = [r for r in rows if (r["model"], r["work"], r["beams"]) == panel]
        batches = sorted({row["batch"] for row in mine})
        for index, engine in enumerate(e for e in engines if any(r["engine"] == e for r in mine)):
            own = {r["batch"]: r["tokens_per_second"] for r in mine if r["engine"] == engine}
            places = [batches.index(batch) + width * index for batch in own]
            bars = axis.bar(places, list(own.values()), width, label=engine, color=colours[engine])
            axis.bar_label(bars, fmt="%.0f", fontsize=6)
        axis.set_xticks([i + 0.3 for i in range(len(batches))], [f"batch {b}" for b in batches])
        search = "greedy" if panel[2] == 1 else f"beam {panel[2]}"
        axis.set_title(f"{panel[0]}, {panel[1]}, {search}: tokens/s", fontsize=9)
        axis.legend(fontsize=7)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
