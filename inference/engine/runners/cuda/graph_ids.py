"""Which captured graph belongs to which addresses.

ONNX Runtime replays the graph that it captured under an id, on the addresses and host values of
that moment, whatever is bound now. So an id stands for one set of them.
"""

from __future__ import annotations

from collections.abc import Hashable

UNCAPTURED = -1
"""The id with which ONNX Runtime runs node by node."""

GRAPH_LIMIT = 192
"""Captured graphs of a session: layouts of rows and positions that recur are fewer."""
_RUNS_BEFORE_CAPTURE = 2
"""A capture takes three runs; most layouts of a group that is filling up last for fewer."""


class GraphIds:
    """Ids of one session's captured graphs. They are never released: ONNX Runtime cannot.

    Args:
        limit: Of captured graphs; what is bound beyond runs node by node.
    """

    def __init__(self, limit: int = GRAPH_LIMIT) -> None:
        self._limit = limit
        self._ids: dict[Hashable, int] = {}
        self._runs: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def of(self, bound: Hashable) -> int:
        """The id for a run; called once for each.

        Args:
            bound: Names, addresses and shapes of everything bound, and the values of host inputs.
        """
        known = self._ids.get(bound)
        if known is not None:
            return known
        runs = self._runs.get(bound, 0)
        if runs < _RUNS_BEFORE_CAPTURE or len(self._ids) >= self._limit:
            if len(self._runs) >= 4 * self._limit:
                self._runs.clear()
            self._runs[bound] = runs + 1
            return UNCAPTURED
        self._runs.pop(bound)
        self._ids[bound] = len(self._ids) + 1
        return self._ids[bound]
