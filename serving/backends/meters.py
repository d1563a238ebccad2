"""A model's numbers on Triton's metrics endpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from serving.backends.heartbeat import Meter
from serving.heartbeat import COUNTERS, GAUGES, PREFIX, labels


class Meters:
    """All at 0. Models share a family that has the same name.

    Args:
        family: `pb_utils.MetricFamily`, which exists in Triton's process alone.
        names: Of `serving.heartbeat`.
        args: What Triton tells a backend of its model.
        parameters: Of the model's configuration.
    """

    def __init__(
        self,
        family: Any,
        names: Iterable[str],
        args: Mapping[str, str],
        parameters: Mapping[str, str],
    ) -> None:
        incarnation = parameters.get("incarnation", "0")
        series = labels(args["model_name"], args["model_version"], incarnation)
        self._families = {
            name: family(
                name=PREFIX + name,
                description=COUNTERS.get(name) or GAUGES[name],
                kind=family.COUNTER if name in COUNTERS else family.GAUGE,
            )
            for name in names
        }
        self.by_name: dict[str, Meter] = {
            name: made.Metric(series) for name, made in self._families.items()
        }

    def close(self) -> None:
        """Takes the series from the endpoint; Triton wants them to go before their families."""
        self.by_name.clear()
        self._families.clear()
