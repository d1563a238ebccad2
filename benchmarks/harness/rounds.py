"""Interleaved rounds: what slows the machine for a while slows every system alike."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

REST_S = 0.25
"""Between two runs, so that no system's spinning threads are still warm in the next one's run."""
T = TypeVar("T")


def interleave(
    systems: Iterable[T], rounds: int, rest_s: float = REST_S
) -> Iterator[tuple[int, T]]:
    """Each round's number with every system, in another order each round, with a rest before."""
    order, shuffle = list(systems), random.Random(0)
    for number in range(rounds):
        shuffle.shuffle(order)
        for system in order:
            time.sleep(rest_s)
            yield number, system
