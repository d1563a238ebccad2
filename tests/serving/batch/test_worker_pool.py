"""Workers are sized by the cores and the memory of the nodes."""

from __future__ import annotations

import pytest

from serving.batch.settings import BatchSettings
from serving.batch.worker_pool import Pool, plan_pool
from triptych.errors import InvalidArgument

GIB = 1 << 30


@pytest.mark.parametrize(
    ("nodes", "needed", "given", "pool"),
    [
        ([(8, 32 * GIB)], GIB, {}, (8, 1)),
        ([(8, 32 * GIB)], 10 * GIB, {}, (2, 3)),  # memory holds three of one core, idle cores help
        ([(8, 32 * GIB)], 16 * GIB, {}, (2, 4)),
        ([(8, 32 * GIB), (4, 8 * GIB), (0, 64 * GIB)], 2 * GIB, {}, (12, 1)),
        ([(8, 32 * GIB), (4, 8 * GIB)], 4 * GIB, {"threads": 4}, (3, 4)),
        ([(8, 32 * GIB)], GIB, {"workers": 3}, (3, 1)),
    ],
)
def test_workers_fill_the_nodes(nodes, needed: int, given: dict, pool: tuple[int, int]) -> None:
    found = plan_pool(nodes, needed, BatchSettings(**given))
    assert found == Pool(*pool, needed)


@pytest.mark.parametrize(
    ("nodes", "given"),
    [
        ([(4, GIB)], {}),
        ([], {}),
        ([(4, 8 * GIB)], {"workers": 5}),
        ([(2, 8 * GIB)], {"threads": 4}),
    ],
)
def test_workers_that_do_not_fit_are_refused(nodes, given: dict) -> None:
    with pytest.raises(InvalidArgument, match="do not fit"):
        plan_pool(nodes, 2 * GIB, BatchSettings(**given))
