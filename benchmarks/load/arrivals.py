"""When requests arrive when nobody waits for anybody: a Poisson process."""

from __future__ import annotations

import random
from collections.abc import Iterator


def poisson_arrivals(rate: float, seed: int) -> Iterator[float]:
    """Seconds after the start at which requests arrive, for ever; gaps are exponential.

    They depend on nothing that the server does, so a stall is felt by every request that would
    have come meanwhile ("coordinated omission", Tene 2013).

    Args:
        rate: Arrivals a second, on average.
        seed: Of the gaps.
    """
    gaps = random.Random(seed)
    now = 0.0
    while True:
        now += gaps.expovariate(rate)
        yield now
