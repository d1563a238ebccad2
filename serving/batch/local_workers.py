"""Workers as processes of this machine, and their shards: without Ray, which spans machines."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import pickle
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, TYPE_CHECKING

from serving.batch.shards import Shard
from serving.batch.worker import IN_PROGRESS, Report, WorkerSettings
from serving.batch.worker_pool import Pool
from serving.processes.launcher import module_command
from serving.processes.supervision import exit_reason, start_connected
from triptych.errors import TriptychError

if TYPE_CHECKING:
    from serving.batch.job import Manifest

log = logging.getLogger(__name__)

_HELD = IN_PROGRESS + 2
"""Shards of a worker at a time: one is written, and one waits, so that no worker waits for this
process."""
_ENDS = 3
"""Of workers in a row that have not opened the model, before no further one is started."""
_PROGRAM = module_command("serving.batch.worker_process")
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class _Process:
    """A worker, started at once. Used by one thread; it ends with that thread.

    Attributes:
        connection: Brings None when the model is open, and then reports; or why it failed.
        is_open: Whether the model is.
        shards: By number, those that it was given and has not reported.
    """

    def __init__(self, given: Path, threads: int, output: IO[bytes]) -> None:
        self.is_open = False
        self.shards: dict[int, Shard] = {}
        self.connection, self._child = start_connected(
            _PROGRAM,
            given,
            stdout=output,
            stderr=output,
            env=os.environ | dict.fromkeys(_THREADS, str(threads)),
        )

    @property
    def rows(self) -> int:
        """Number of rows of its shards."""
        return sum(shard.rows for shard in self.shards.values())

    def give(self, shard: Shard) -> None:
        """One more shard; a worker that has ended keeps it in `shards`."""
        self.shards[shard.number] = shard
        with contextlib.suppress(OSError):  # it has ended, as reading the connection will say
            self.connection.send(shard)

    def end(self) -> str:
        """End it, if it has not ended; why it has."""
        self._child.kill()
        self.connection.close()
        return exit_reason(self._child.wait())


class _Workers:
    """The workers of a run, and the shards that none of them has."""

    def __init__(self, start: Callable[[], _Process], count: int, shards: deque[Shard]) -> None:
        self._start = start
        self._waiting = shards
        self._running = [start() for _ in range(min(count, len(shards)))]
        self._ends = 0

    def reports(self) -> Iterator[Report]:
        """The report of each shard.

        Raises:
            TriptychError: a worker failed, or none can be started.
        """
        while self._hand_out():
            found = wait([worker.connection for worker in self._running])
            for worker in [one for one in self._running if one.connection in found]:
                try:
                    message = worker.connection.recv()
                except (EOFError, OSError):
                    self._replace(worker)
                    continue
                if isinstance(message, str):
                    raise TriptychError(f"a worker failed: {message}")
                if message is None:
                    worker.is_open, self._ends = True, 0
                else:
                    del worker.shards[message.shard]
                    yield message

    def close(self) -> None:
        """End all workers."""
        for worker in self._running:
            worker.end()

    def _hand_out(self) -> bool:
        """Give shards to the workers with the fewest rows; whether any is left to make."""
        while self._waiting:
            able = [worker for worker in self._running if len(worker.shards) < _HELD]
            if not able:
                break
            min(able, key=lambda worker: worker.rows).give(self._waiting.popleft())
        return bool(self._waiting) or any(worker.shards for worker in self._running)

    def _replace(self, worker: _Process) -> None:
        """Start another one for one that has ended; its shards are given again.

        Raises:
            TriptychError: one after the other ends before it has opened the model.
        """
        reason = worker.end()
        log.warning("a worker ended: %s; its shards are made again", reason)
        self._running.remove(worker)
        self._waiting.extendleft(reversed(worker.shards.values()))
        self._ends += not worker.is_open
        if self._ends < _ENDS:
            self._running.append(self._start())
        elif not self._running:
            raise TriptychError(f"workers end before they have opened the model: {reason}")


def local_reports(
    manifest: Manifest, shards: Iterable[Shard], settings: WorkerSettings, pool: Pool
) -> Iterator[Report]:
    """The report of each shard, as workers finish them.

    A worker that dies is started again; the shards that it had are made again.

    Raises:
        TriptychError: a worker cannot open the model, read the input, or write the output.
    """
    with tempfile.TemporaryDirectory(prefix="triptych-batch-") as name:
        folder = Path(name)
        given = folder / "given"  # not through a connection, which would wait for the worker
        given.write_bytes(pickle.dumps((manifest.job, manifest.source, settings)))
        with (folder / "log").open("wb") as output:
            start = functools.partial(_Process, given, pool.threads, output)
            workers = _Workers(start, pool.workers, deque(shards))
            try:
                yield from workers.reports()
            finally:
                workers.close()
                log.debug("of the workers: %s", (folder / "log").read_text(errors="replace"))
