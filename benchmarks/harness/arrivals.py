"""Arrival times of independent requests: a Poisson process."""

from __future__ import annotations

import random
from collections.abc import Iterator


def poisson_arrivals(rate: float, seed: int) -> Iterator[float]:
    """Seconds after the start at which requests arrive, without end; gaps are exponential.

    They do not depend on the server, so a stall delays every request that arrives meanwhile
    (no "coordinated omission", Tene 2013).

    Args:
        rate: Mean arrivals per second.
        seed: Seed of the gaps.
    """
    gaps = random.Random(seed)
    now = 0.0
    while True:
        now += gaps.expovariate(rate)
        yield now
