"""The rule of the ScaledObject in docker/kubernetes, as a process of the simulation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.scaling.model import Cluster, Process


@dataclass
class Autoscaler:
    """Adds Tritons by their load, in units of one whose rows are all in use.

    Attributes:
        start_s: From the decision to a Triton that serves.
        target: Load of each that is aimed at.
        period_s: Between decisions.
        scrape_s: Age of what it decides by.
        most: Tritons.
        growth: A number of Tritons → how many a minute may be added.
        history: Time and number of Tritons, at each decision.
    """

    cluster: Cluster
    start_s: float
    target: float = 0.25
    period_s: float = 15.0
    scrape_s: float = 15.0
    most: int = 200
    growth: Callable[[int], int] = lambda count: max(4, count)
    history: list[tuple[float, int]] = field(default_factory=list)

    def run(self) -> Process:
        """Decide for ever."""
        env, cluster = self.cluster.env, self.cluster
        wanted = len(cluster.up)
        added: list[tuple[float, int]] = []
        while True:
            load = self._load()
            yield env.timeout(self.scrape_s)
            desired = min(self.most, math.ceil(load / self.target))
            recent = sum(count for at_s, count in added if env.now - at_s < 60)
            more = min(desired - wanted, self.growth(wanted - recent) - recent)
            if more > 0:
                added.append((env.now, more))
                wanted += more
                for _ in range(more):
                    env.process(cluster.add(self.start_s))
            self.history.append((env.now, len(cluster.up)))
            yield env.timeout(max(0.0, self.period_s - self.scrape_s))

    def _load(self) -> float:
        rows = self.cluster.costs.rows
        return sum(triton.load for triton in self.cluster.up) / rows
