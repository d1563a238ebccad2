"""A group's figures as a picture: its curve or measures, and its speed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.history.columns import COLUMNS
from benchmarks.history.measurement import Figures
from examples.history.system import Group


def is_plotted(group: Group) -> bool:
    """Whether there is anything to compare: two systems, or a curve."""
    return group.curve is not None or len(group.systems) > 1


def plot(group: Group, figures: Figures, path: Path) -> None:
    """Draws the systems that have been measured, as served; speed in all columns."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [one for one in group.systems if one.checkpoint in figures["systems"]]
    systems = {f"{one.title} ({one.year})": figures["systems"][one.checkpoint] for one in shown}
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    if group.curve:
        _draw_curve(left, group, systems)
    else:
        _draw_measures(left, group, systems)
    _draw_speed(right, systems)
    figure.savefig(path, dpi=90)
    pyplot.close(figure)


def _draw_curve(axis: Any, group: Group, systems: dict[str, Figures]) -> None:
    assert group.curve is not None
    names = [point.name for point in group.curve.points]
    for index, (title, figures) in enumerate(systems.items()):
        values = [figures["curve"].get(name, {}).get("served", float("nan")) for name in names]
        axis.plot(names, values, marker="os^Dvph*"[index % 8], label=title)
    axis.set_xlabel(group.curve.axis, fontsize=8)
    axis.set_title(f"{group.curve.title}, served", fontsize=9)
    axis.set_ylim(-3, 103)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=7)


def _draw_measures(axis: Any, group: Group, systems: dict[str, Figures]) -> None:
    height = 0.8 / max(1, len(systems))
    for index, (title, figures) in enumerate(systems.items()):
        values = [figures["scores"].get(m.name, {}).get("served", 0) for m in group.measures]
        places = [place + index * height for place in range(len(values))]
        bars = axis.barh(places, values, height, label=title)
        axis.bar_label(bars, fmt="%.1f", fontsize=7)
    middle = [place + (len(systems) - 1) * height / 2 for place in range(len(group.measures))]
    axis.set_yticks(middle, [measure.name for measure in group.measures], fontsize=7)
    axis.invert_yaxis()
    axis.set_title("quality, served", fontsize=9)
    axis.legend(fontsize=7)


def _draw_speed(axis: Any, systems: dict[str, Figures]) -> None:
    width = 0.8 / len(COLUMNS)
    for index, column in enumerate(COLUMNS):
        values = [one["items_per_second"].get(column) or 0 for one in systems.values()]
        axis.bar([place + index * width for place in range(len(values))], values, width,
                 label=column)  # fmt: skip
    names = [title.replace(": ", ":\n").replace(" (", "\n(") for title in systems]
    axis.set_xticks([place + 1.5 * width for place in range(len(names))], names, fontsize=6)
    axis.set_title("items/s", fontsize=9)
    axis.legend(fontsize=7)
