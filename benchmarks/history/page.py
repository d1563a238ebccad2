"""docs/history.md: the list of the systems and their recorded figures, as one page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.history.measurement import Figures, recorded
from benchmarks.history.plots import is_plotted, plot
from benchmarks.history.tables import tables
from examples.history.system import Group
from examples.history.systems import GROUPS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "history.md"
_HEAD = """\
# The history, measured

From recurrence to attention to models of pictures and text: small systems of each kind, trained by
scripts of this repository on its own worlds ([examples](../examples)), exported,
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
Megabytes of a checkpoint are those of its weights on disk, mostly float16; ONNX graphs are float32.
"""


def write(groups: tuple[Group, ...] | None = None) -> None:
    """Writes the page, and the plots of some groups (by default of all)."""
    for group in groups or tuple(GROUPS.values()):
        figures = recorded(group)
        if is_plotted(group) and figures["systems"]:
            _plot_file(group).parent.mkdir(exist_ok=True)
            plot(group, figures, _plot_file(group))
    PAGE.write_text(text(), encoding="utf-8")


def text() -> str:
    """The page."""
    sections = ["\n".join(_section(group, recorded(group))) for group in GROUPS.values()]
    return "\n".join([_HEAD, _in_order(), *sections])


def _in_order() -> str:
    """All systems by year."""
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
