"""An id stands for one set of addresses."""

from __future__ import annotations

from inference.engine.runners.cuda.graph_ids import UNCAPTURED, GraphIds


def ids(graphs: GraphIds, bound: object, runs: int) -> list[int]:
    return [graphs.of(bound) for _ in range(runs)]


def test_layout_is_captured_when_it_recurs() -> None:
    assert ids(GraphIds(), "a", 5) == [UNCAPTURED, UNCAPTURED, 1, 1, 1]


def test_other_addresses_have_another_id() -> None:
    graphs = GraphIds()
    ids(graphs, ("past", 256, (1, 2)), 3)
    assert ids(graphs, ("past", 512, (1, 2)), 3)[-1] == 2
    assert ids(graphs, ("past", 256, (1, 4)), 3)[-1] == 3
    assert graphs.of(("past", 256, (1, 2))) == 1


def test_beyond_the_limit_nothing_more_is_captured() -> None:
    graphs = GraphIds(limit=2)
    assert [ids(graphs, name, 4)[-1] for name in "abc"] == [1, 2, UNCAPTURED]
    assert ids(graphs, "a", 1) == [1]
    assert len(graphs) == 2


def test_layouts_that_never_recur_are_forgotten() -> None:
    graphs = GraphIds(limit=2)
    for number in range(1000):
        graphs.of(number)
    assert len(graphs._runs) <= 8
