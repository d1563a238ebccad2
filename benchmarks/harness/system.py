"""A system under test, in a process of its own that keeps its model loaded between runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

THREADS = 2
"""Of a system, unless it says otherwise."""


@dataclass(frozen=True)
class System:
    """A runtime at one precision."""

    runtime: str
    precision: str
    threads: int = THREADS

    @property
    def name(self) -> str:
        """Runtime and precision."""
        return f"{self.runtime} {self.precision}"

    @property
    def label(self) -> str:
        """As tables name it."""
        return self.name if self.threads == THREADS else f"{self.name}, {self.threads} thread"


class SystemProcess:
    """A system with one model, in a process that is idle between runs.

    Args:
        loader: The module whose `load` makes the system (see `worker`).
        cache: Folder of checkpoints, bundles and logs; created if it is missing.

    Raises:
        RuntimeError: the process ended.
    """

    def __init__(self, loader: str, system: System, model: str, cache: Path) -> None:
        cache.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "benchmarks.harness.worker", loader, system.runtime]
        command += [system.precision, str(system.threads), model, str(cache)]
        benchmark = loader.split(".")[-2]
        self._log = (cache / f"{benchmark}-{model}-{system.label}.log".replace(" ", "-")).open("w")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
        )  # fmt: skip
        self._read()

    def __enter__(self) -> SystemProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def run(self, work: dict[str, Any]) -> dict[str, Any]:
        """What the system measured of some work, with its CPU seconds and its peak of memory."""
        self._process.stdin.write(json.dumps(work) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a worker ended; its output is in {self._log.name}")
        found: dict[str, Any] = json.loads(line)
        return found


@contextmanager
def start_systems(
    loader: str, systems: Iterable[System], model: str, cache: Path
) -> Iterator[dict[System, SystemProcess]]:
    """All systems with one model, loaded one after the other; they end with the block."""
    with ExitStack() as stack:
        yield {
            system: stack.enter_context(SystemProcess(loader, system, model, cache))
            for system in systems
        }
