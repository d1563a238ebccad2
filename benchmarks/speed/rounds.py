"""Engines in turn, round after round, each in a process of its own that keeps its model."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.speed.work import Timing, Work

REST_S = 0.25
"""Between two runs, so that no engine's spinning threads are still warm in the next one's run."""


@dataclass(frozen=True)
class Contender:
    """An engine at one precision."""

    engine: str
    precision: str

    @property
    def label(self) -> str:
        """As tables name it."""
        return f"{self.engine} {self.precision}"


@dataclass(frozen=True)
class Cell:
    """One row of the table: a model, how it is asked, and the work of each round."""

    model: str
    title: str
    rounds: tuple[Work, ...]

    @property
    def beams(self) -> int:
        """Of all its rounds."""
        return self.rounds[0].beams

    @property
    def batch(self) -> int:
        """Sequences decoded together."""
        return len(self.rounds[0].items)


@dataclass
class Result:
    """What one contender took for one cell, one timing a round."""

    cell: Cell
    contender: Contender
    timings: list[Timing] = field(default_factory=list)


class Process:
    """One worker: an engine with a model loaded, idle until it is asked."""

    def __init__(self, contender: Contender, model: str, cache: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.speed.worker"]
        command += [contender.engine, contender.precision, model, str(cache)]
        self._log = (cache / f"{model}-{contender.engine}-{contender.precision}.log").open("w")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
        )  # fmt: skip
        self.loaded = self._read()

    def run(self, work: Work) -> Timing:
        """One batch, decoded."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(work)) + "\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._log.close()

    def _read(self) -> Timing:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"an engine died; its last words are in {self._log.name}")
        return Timing(**json.loads(line))


class Arena:
    """All contenders of one model, loaded one after the other."""

    def __init__(self, model: str, contenders: Sequence[Contender], cache: Path) -> None:
        self.processes: dict[Contender, Process] = {}
        for contender in contenders:
            self.processes[contender] = Process(contender, model, cache)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self.processes.values():
            process.close()

    def play(self, cell: Cell) -> list[Result]:
        """A warm-up, then every round with every contender, in another order each."""
        results = {contender: Result(cell, contender) for contender in self.processes}
        order = list(self.processes)
        for contender in order:
            self.processes[contender].run(cell.rounds[0])
        shuffle = random.Random(0)
        for work in cell.rounds:
            shuffle.shuffle(order)
            for contender in order:
                time.sleep(REST_S)
                results[contender].timings.append(self.processes[contender].run(work))
        return list(results.values())
