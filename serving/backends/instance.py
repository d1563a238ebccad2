"""What every python-based backend does for one instance of a model, whatever it hosts."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from serving.backends import ENVIRONMENT
from serving.liveness.heartbeat import COUNTERS, GAUGES, PREFIX, Metric, labels


def assert_interpreter() -> None:
    """Stop a stub that imports its packages from another Python: its outputs would be empty."""
    assert np.__version__.startswith("1."), f"numpy {np.__version__}: Triton's stub needs numpy 1"
    homes = [(Path(sys.prefix) / name).resolve() for name in (".", ENVIRONMENT)]
    found = Path(np.__file__).resolve()
    assert any(map(found.is_relative_to, homes)), f"numpy is not from {homes[0]}"


class TritonLog(logging.Handler):
    """Writes what Python logs into Triton's log, one line a record, with the record's level.

    Lines that a model's process prints have no level, and are shown at DEBUG alone.

    Args:
        logger: `pb_utils.Logger`, which exists only in a process that Triton started.
    """

    def __init__(self, logger: Any) -> None:
        super().__init__()
        self._writers: dict[int, Callable[[str], None]] = {
            logging.ERROR: logger.log_error,
            logging.WARNING: logger.log_warn,
            logging.INFO: logger.log_info,
        }

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; those below INFO are left out."""
        for level, write in self._writers.items():
            if record.levelno >= level:
                write(f"{record.name}: {self.format(record)}")
                return


def log_to_triton(logger: Any) -> None:
    """Have this process log into Triton's log, from INFO on."""
    logging.basicConfig(level=logging.INFO, handlers=[TritonLog(logger)], force=True)


class TritonMetrics:
    """The figures of this process on Triton's metrics endpoint, all at 0.

    Args:
        family: `pb_utils.MetricFamily`, which exists only in a process that Triton started.
        names: Of `serving.liveness.heartbeat`.
        args: The arguments of `initialize`.
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
        series = labels(args["model_name"], args["model_version"], incarnation, os.getpid())
        # Models share a family of the same name.
        self._families = {
            name: family(
                name=PREFIX + name,
                description=COUNTERS.get(name) or GAUGES[name],
                kind=family.COUNTER if name in COUNTERS else family.GAUGE,
            )
            for name in names
        }
        self.by_name: dict[str, Metric] = {
            name: made.Metric(series) for name, made in self._families.items()
        }

    def close(self) -> None:
        """Removes the series from the endpoint, before their families as Triton requires."""
        self.by_name.clear()
        self._families.clear()
