"""A group's figures as tables: rows of texts, for the terminal and for the page alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from benchmarks.history.columns import COLUMNS
from benchmarks.history.measurement import Figures
from examples.history.system import Group, System

NOTHING = "–"


@dataclass(frozen=True)
class Texts:
    """A table: heads, rows, and how many of its first columns are text."""

    heads: list[str]
    rows: list[list[str]]
    words: int

    def as_markdown(self) -> str:
        """With numbers on the right."""
        rule = ["---"] * self.words + ["--:"] * (len(self.heads) - self.words)
        lines = [self.heads, rule, *self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def as_rich(self, title: str) -> Table:
        """For a console."""
        table = Table(title=title)
        for index, head in enumerate(self.heads):
            table.add_column(
                head, justify="left" if index < self.words else "right", no_wrap=index == 0
            )
        for row in self.rows:
            table.add_row(*(cell.strip("`") for cell in row))
        return table


def tables(group: Group, figures: Figures) -> dict[str, Texts]:
    """The tables that there are figures for, by title."""
    made = {"Quality": quality(group, figures)}
    if group.curve:
        made[f"{group.curve.title}, served"] = curve(group, figures)
    made["Size and speed"] = speed(group, figures)
    return made


def quality(group: Group, figures: Figures) -> Texts:
    """A row for each system and measure, a column for each runtime."""
    rows = [
        [_named(system), measure.name, *_cells(_of(figures, system, "scores", measure.name))]
        for measure in group.measures
        for system in group.systems
    ]
    return Texts(["system", "measure", *COLUMNS], rows, words=2)


def curve(group: Group, figures: Figures) -> Texts:
    """A row for each system, a column for each point, as served."""
    points = [point.name for point in group.curve.points]
    rows = [
        [_named(system), *(_text(_of(figures, system, "curve", p).get("served")) for p in points)]
        for system in group.systems
    ]
    return Texts(["system", *points], rows, words=1)


def speed(group: Group, figures: Figures) -> Texts:
    """Parameters, megabytes and items a second."""
    forms = ("checkpoint", "ONNX", "int8")
    rows = [
        [
            _named(system),
            _thousands(figures["systems"].get(system.checkpoint, {}).get("parameters")),
            *(_plain(_of(figures, system, "megabytes").get(form)) for form in forms),
            *(_plain(_of(figures, system, "items_per_second").get(one)) for one in COLUMNS),
        ]
        for system in group.systems
    ]
    sizes = ["MB", "MB ONNX", "MB int8"]
    speeds = [f"items/s {column}" for column in COLUMNS]
    return Texts(["system", "parameters", *sizes, *speeds], rows, words=1)


def _named(system: System) -> str:
    return f"`{system.checkpoint}`"


def _of(figures: Figures, system: System, *path: str) -> Mapping[str, Any]:
    """A part of a system's figures; empty where it has not been measured."""
    found: Mapping[str, Any] = figures["systems"].get(system.checkpoint, {})
    for name in path:
        found = found.get(name, {})
    return found


def _cells(values: Mapping[str, Any]) -> list[str]:
    return [_text(values.get(column)) for column in COLUMNS]


def _text(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1f}"


def _plain(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.0f}" if value >= 100 else f"{value:g}"


def _thousands(value: int | None) -> str:
    return NOTHING if value is None else f"{value:,}"
