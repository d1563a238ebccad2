"""examples/history/README.md: the list of the systems and their recorded figures, as one page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.history.columns import COLUMNS, Figures, read_recorded
from examples.history.system import Group, System
from examples.history.systems import GROUPS

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
        [_name(system), measure.name, *_cells(_of(figures, system, "scores", measure.name))]
        for measure in group.measures
        for system in group.systems
    ]
    return Texts(["system", "measure", *COLUMNS], rows, words=2)


def curve(group: Group, figures: Figures) -> Texts:
    """A row for each system, a column for each point, as served."""
    points = [point.name for point in group.curve.points]
    rows = [
        [_name(system), *(_text(_of(figures, system, "curve", p).get("served")) for p in points)]
        for system in group.systems
    ]
    return Texts(["system", *points], rows, words=1)


def speed(group: Group, figures: Figures) -> Texts:
    """Parameters, megabytes and items a second."""
    forms = ("checkpoint", "ONNX", "int8")
    rows = [
        [
            _name(system),
            _thousands(figures["systems"].get(system.checkpoint, {}).get("parameters")),
            *(_plain(_of(figures, system, "megabytes").get(form)) for form in forms),
            *(_plain(_of(figures, system, "items_per_second").get(one)) for one in COLUMNS),
        ]
        for system in group.systems
    ]
    sizes = ["MB", "MB ONNX", "MB int8"]
    speeds = [f"items/s {column}" for column in COLUMNS]
    return Texts(["system", "parameters", *sizes, *speeds], rows, words=1)


def _name(system: System) -> str:
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


ROOT = Path(__file__).parents[2]
PAGE = ROOT / "examples" / "history" / "README.md"
_HEAD = """\
# The history, measured

From recurrence to attention to models of pictures and text: small systems of each kind, trained by
scripts of this repository on its own worlds ([examples](../README.md)), exported,
verified, and served by one engine. `triptych compare --render` writes this page from
`examples/history` and from the figures in `benchmarks/results`:

```bash
make history                         # exports the course's systems into the model repository
triptych compare --list              # groups and systems
triptych compare translation         # measures one group and prints its tables
triptych compare translation --write # the same, recorded: figures, plot and this page
```

Quality is measured on held-out data, the same for every system and column. *PyTorch*: our module in
this process; *ONNX*: the exported graphs there; *int8*: the same graphs with int8 weights and
activations; *served*: through Triton and the gateway. Items/s count one client that sends one
request at a time, of up to 32 items, on the machine of the run: compare them within a group.
A group states the processor of its run; those of the first runs were not recorded.
Megabytes of a checkpoint are those of its weights on disk, mostly float16; ONNX graphs are float32.
"""


def write(groups: tuple[Group, ...] | None = None) -> None:
    """Writes the page, and the plots of some groups (by default of all)."""
    for group in groups or tuple(GROUPS.values()):
        figures = read_recorded(group)
        if is_plotted(group) and figures["systems"]:
            _plot_file(group).parent.mkdir(exist_ok=True)
            plot(group, figures, _plot_file(group))
    PAGE.write_text(text(), encoding="utf-8")


def text() -> str:
    """The page of all groups, in Markdown."""
    sections = ["\n".join(_section(group, read_recorded(group))) for group in GROUPS.values()]
    return "\n".join([_HEAD, _in_order(), *sections])


def _in_order() -> str:
    systems = [(one, group) for group in GROUPS.values() for one in group.systems]
    lines = ["| year | system | paper | checkpoint | task |", "|---|---|---|---|---|"]
    for one, group in sorted(systems, key=lambda pair: pair[0].year):
        task = f"[{group.name}](#{_anchor(group)})"
        lines.append(f"| {one.year} | {one.title} | {one.paper} | `{one.checkpoint}` | {task} |")
    return "\n".join(["## In order", "", *lines, ""])


def _section(group: Group, figures: Figures) -> Iterator[str]:
    yield from (f"## {group.title}", "", " ".join(group.story.split()), "")
    for one in group.systems:
        yield f"- **{one.title}** ({one.year}): {' '.join(one.idea.split())} `{one.command}`"
    yield ""
    if not figures["systems"]:
        yield from (f"Not measured yet: `triptych compare {group.name} --write`.", "")
        return
    for title, table in tables(group, figures).items():
        note = f", {figures['items']} items a measure" if title == "Quality" else ""
        if title == "Quality" and "processor" in figures:
            note += f", on {figures['processor']}"
        yield from (f"{title}{note}:", "", table.as_markdown(), "")
    if is_plotted(group):
        file = _plot_file(group)
        yield from (f"![{group.title}]({file.relative_to(PAGE.parent)})", "")


def _plot_file(group: Group) -> Path:
    return PAGE.parent / "images" / f"history-{group.name}.png"


def _anchor(group: Group) -> str:
    """As GitHub makes it of a heading."""
    kept = "".join(each for each in group.title.lower() if each.isalnum() or each in " -")
    return kept.replace(" ", "-")


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
