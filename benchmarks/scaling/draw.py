"""The figure of benchmarks/scaling/STUDY.md."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.figures.style import canvas, save, settings


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Four panels: this machine, load, a step of load, a failed node."""
    with settings():
        figure, ((here, load), (step, failure)) = canvas(8, 5.6, rows=2, columns=2)
        _here(here, found["here"])
        parts = [each["part"] for each in found["utilisation"]]
        for name in ("p50_ms", "p99_ms"):
            load.plot(parts, [each[name] for each in found["utilisation"]], label=name[:3])
        load.set(title="load of the Tritons, of their capacity", ylabel="ms", ylim=(0, None))
        load.legend()
        _step(step, found["step"])
        for part, each in found["failure"].items():
            _latency(failure, each["windows"], f"load {part}")
        failure.axvspan(60, 85, color="0.92")
        failure.set(title="a node with a quarter of the Tritons ends", xlabel="s", ylabel="p99, s")
        failure.legend()
        save(figure, path)


def _here(axis: Any, found: Mapping[str, Any]) -> None:
    for (name, each), colour in zip(found.items(), ("C0", "C1"), strict=True):
        rates = [row["measured"]["rate"] for row in each["open"]]
        for kind, line in (("measured", "o-"), ("predicted", "x--")):
            for part, alpha in (("p50_ms", 1.0), ("p99_ms", 0.5)):
                values = [row[kind][part] for row in each["open"]]
                label = f"{name}, {kind} {part[:3]}"
                axis.plot(rates, values, line, color=colour, alpha=alpha, label=label)
    axis.set(title="this machine", xlabel="requests/s", ylabel="ms", yscale="log")
    axis.legend(fontsize=5, loc="upper left")
    axis.set_ylim(None, 3 * axis.get_ylim()[1])


def _step(axis: Any, found: Mapping[str, Any]) -> None:
    other = axis.twinx()
    for place, (name, each) in enumerate(found.items()):
        _latency(axis, each["windows"], name)
        times, counts = zip(*each["tritons"], strict=True)
        other.step(times, counts, color=f"C{place}", alpha=0.4, linestyle=":", where="post")
    other.set(ylabel="Tritons (dotted)", ylim=(0, None))
    axis.axvline(60, color="0.8", linewidth=0.8)
    axis.set(title="load doubles at 60 s", xlabel="s", ylabel="p99, s")
    axis.legend(loc="center right")


def _latency(axis: Any, windows: list[dict[str, float]], label: str) -> None:
    times = [each["start_s"] + 5 for each in windows]
    axis.plot(times, [each["p99_ms"] / 1000 for each in windows], label=label)
    axis.set_yscale("log")
