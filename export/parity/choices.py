"""Comparisons of graphs that choose places by their scores (CHOSEN), in the face of near ties.

Two places whose scores differ by rounding have no order, and what follows depends on it: query 17
is another vector than query 18. So the modules are given the choice that the graph made, and return
how far its places are from the best in CHOSEN_SCORES; a wrong choice differs there.

Other precisions cannot be compared in this way: their choice differs by more than ties. They are
refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from export.parity.parity_inputs import Array, Feeds, Run
from inference.bundle.manifest import Graph, Manifest, Role


class Choices:
    """The choices of one side of a comparison, in the order of its calls."""

    def __init__(self, manifest: Manifest) -> None:
        self._names = {key: _name(graph) for key, graph in manifest.graphs.items()}
        self._made: list[Array] = []

    @property
    def are_made(self) -> bool:
        """Whether any graph chooses."""
        return any(self._names.values())

    def record(self, run: Run) -> Run:
        """Calls whose choices are kept."""

        def call(key: str, feeds: Feeds) -> dict[str, Array]:
            outputs = run(key, feeds)
            self._made.extend(self.of(key, outputs).values())
            return outputs

        return call

    def replay(self, run: Run) -> Run:
        """The same calls of modules, with the choices that were kept."""
        kept: Iterator[Array] = iter(self._made)

        def call(key: str, feeds: Feeds) -> dict[str, Array]:
            name = self._names[key]
            return run(key, feeds if name is None else {**feeds, name: next(kept)})

        return call

    def of(self, key: str, outputs: Mapping[str, Array]) -> Feeds:
        """The choice among the outputs of a call, as a further input of the module."""
        name = self._names[key]
        return {} if name is None else {name: outputs[name]}


def judged_outputs(graph: Graph, one: Mapping[str, Array], other: Mapping[str, Array]) -> list[str]:
    """Outputs in which two calls of a graph must agree.

    Where they chose otherwise, that is the scores of the choices, which then are near ties.
    """
    chosen, scores = graph.output(Role.CHOSEN), graph.output(Role.CHOSEN_SCORES)
    if chosen is None or scores is None:
        return list(one)
    if not np.array_equal(one[chosen.name], other[chosen.name]):
        return [scores.name]
    return [name for name in one if name != chosen.name]


def _name(graph: Graph) -> str | None:
    port = graph.output(Role.CHOSEN)
    return None if port is None else port.name
