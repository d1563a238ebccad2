"""Plots of results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


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
