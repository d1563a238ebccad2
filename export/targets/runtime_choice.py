"""Which runtime serves a stateless bundle: the fastest of those that pass the gate.

They take turns on this machine over a fixed panel, in the classes and with the configuration that
serve them; the geometric mean over the panel of their medians decides.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import geometric_mean, median

from rich.table import Table

from export.targets.served_graph import open_graph, panel
from inference.bundle.manifest import Bundle

ROUNDS = 7
REST_S = 0.05
"""Between two turns, so that no runtime's spinning threads are awake in the other one's turn."""

Milliseconds = Mapping[str, Mapping[str, float]]
"""Cell of the panel → runtime → median of a call."""


@dataclass(frozen=True)
class Choice:
    """The runtime that was chosen, and why.

    Attributes:
        relative: Runtime → its time over that of the chosen one, geometric mean over the panel.
        dropped: Runtime → why it cannot be chosen.
    """

    runtime: str
    milliseconds: Milliseconds
    relative: Mapping[str, float]
    dropped: Mapping[str, str]

    def table(self) -> Table:
        """A line a cell, a column a runtime."""
        names = list(self.relative)
        made = Table("milliseconds, medians", *names)
        for cell, times in self.milliseconds.items():
            made.add_row(cell, *(f"{times[name]:.2f}" for name in names))
        made.add_row("relative time", *(f"{self.relative[name]:.2f}" for name in names))
        return made


def choose(milliseconds: Milliseconds, dropped: Mapping[str, str]) -> Choice:
    """The runtime of the least geometric mean; of equal ones the first."""
    names = list(next(iter(milliseconds.values())))
    means = {name: geometric_mean(times[name] for times in milliseconds.values()) for name in names}
    chosen = min(means, key=lambda name: means[name])
    relative = {name: round(mean / means[chosen], 3) for name, mean in means.items()}
    return Choice(chosen, milliseconds, relative, dict(dropped))


def timed(bundles: Mapping[str, Bundle], rounds: int = ROUNDS) -> dict[str, dict[str, float]]:
    """Median milliseconds of each call of the panel, by runtime.

    Args:
        bundles: Runtime → a bundle with its graphs in place.
    """
    cells = panel(next(iter(bundles.values())))
    keys = dict.fromkeys(key for key, _ in cells.values())
    graphs = {name: {key: open_graph(each, key) for key in keys} for name, each in bundles.items()}
    spent: dict[str, dict[str, list[float]]] = {
        cell: {name: [] for name in bundles} for cell in cells
    }
    order, shuffle = list(bundles), random.Random(0)
    for _ in range(rounds):
        shuffle.shuffle(order)
        for name in order:
            time.sleep(REST_S)
            for cell, (key, feeds) in cells.items():
                graphs[name][key](feeds)  # the first call after a pause is slower
                started_s = time.perf_counter()
                graphs[name][key](feeds)
                spent[cell][name].append(1000 * (time.perf_counter() - started_s))
    return {
        cell: {name: round(median(times), 3) for name, times in by_name.items()}
        for cell, by_name in spent.items()
    }
