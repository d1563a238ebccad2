"""The counts of a gateway of several workers, in memory that they share.

No lock is taken. A worker counts its share first and reads all slots then; between the two is a
memory barrier, so that of two workers which count at the same moment at least one sees the other's
share: never more than the limit is admitted. Both may see each other, and be refused together.

A slot is written by its worker only, and cleared by the supervisor when that worker has ended: what
a killed worker had admitted is free again at once. There is no lock that could be left behind.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import threading
import time
from dataclasses import astuple, fields
from enum import IntEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from inference.errors import Overloaded
from serving.gateway.admission.admission import Counts, Turns, Usage
from serving.gateway.observability.metrics import Load

_WORD = 8


class Field(IntEnum):
    """The words of a slot, before its table of keys."""

    BEATS = 0
    """Grows while the worker's event loop runs; 0 until it serves."""
    REQUESTS = 1
    """Admitted."""
    TOKENS = 2
    """Admitted."""
    PIXELS = 3
    """Admitted."""
    TURNS = 4
    """Taken at Triton."""
    QUEUED = 5
    """Calls that wait to be sent to Triton."""
    OLDEST_NS = 6
    """Since when the first one waits for a turn, in monotonic time; 0: none waits."""
    RESTARTS = 7
    """Workers started again; written by the supervisor, and kept when the slot is cleared."""
    BYTES = 8
    """Admitted, of bodies."""


class KeyField(IntEnum):
    """The words of a row of the table of keys."""

    DIGEST = 0
    """Of the key's name; 0: the row is free."""
    REQUESTS = 1
    TOKENS = 2
    PIXELS = 3
    BYTES = 4


_RESOURCES = [one.name.upper() for one in fields(Usage)]
"""Of both, in the order of `Usage`."""


class Segment:
    """The slots of all workers, in a file that each process maps.

    Args:
        path: The file; it is created with zeros if there is none.
        workers: Slots.
        keys: Rows of each slot's table of keys.
    """

    def __init__(self, path: Path, workers: int, keys: int) -> None:
        self.workers = workers
        self._size = len(Field) + keys * len(KeyField)
        length = workers * self._size * _WORD
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, length)  # no page is missing when the disk is full
            memory = mmap.mmap(descriptor, length)
        finally:
            os.close(descriptor)
        self.words = memoryview(memory).cast("q")
        """All slots; a read or write of one word is atomic."""
        shape = workers, self._size
        slots = np.frombuffer(memory, np.int64).reshape(shape)
        self.keys: NDArray[np.int64] = slots[:, len(Field) :].reshape(workers, keys, len(KeyField))
        """Tables of keys, (workers, keys, fields)."""

    def place(self, worker: int, field: Field) -> int:
        """Position in `words`.

        Args:
            worker: Its number, from 0.
        """
        return worker * self._size + field

    def places(self, field: Field) -> tuple[int, ...]:
        """Positions in `words` of one field of all workers."""
        return tuple(self.place(worker, field) for worker in range(self.workers))

    def read(self, worker: int, field: Field) -> int:
        """One word."""
        return self.words[self.place(worker, field)]

    def total(self, field: Field) -> int:
        """Sum over all workers."""
        return sum(self.words[place] for place in self.places(field))

    def clear(self, worker: int) -> None:
        """Free all that a worker had counted; it has ended."""
        for each in Field:
            if each is not Field.RESTARTS:
                self.words[self.place(worker, each)] = 0
        self.keys[worker] = 0


POLL_S = 0.002
"""Between two looks for a free turn, while callers wait. A sequence has its turn for longer."""
PATIENCE_S = 0.05
"""So long a free turn is left to a worker whose caller has waited for longer; it may hang."""


class SharedTurns(Turns):
    """The turns of one worker. Used on its event loop.

    Args:
        memory: Shared by all workers.
        number: Of this worker, from 0.
        limit: Turns in all.
    """

    poll_s = POLL_S

    def __init__(self, memory: Segment, number: int, limit: int) -> None:
        self._words = memory.words
        self._turns = memory.places(Field.TURNS)
        self._own = self._turns[number]
        self._oldest = memory.places(Field.OLDEST_NS)
        self._own_oldest = self._oldest[number]
        self._limit = limit
        self._barrier = threading.Lock()
        self._passed_over_ns: int | None = None
        """Since when a free turn has been left to another worker."""

    def take(self, since_s: float) -> bool:
        """Take a turn, if one is free and no other worker's caller has waited for longer."""
        since_ns = int(since_s * 1e9)
        self._words[self._own_oldest] = since_ns
        if is_taken := self._may_take(since_ns) and self._count():
            self._words[self._own_oldest] = 0
        return is_taken

    def release(self) -> None:
        """Give a turn back."""
        self._words[self._own] -= 1

    def stop_waiting(self) -> None:
        """Say that no caller of this worker waits."""
        self._words[self._own_oldest] = 0

    @property
    def _used(self) -> int:
        return sum([self._words[place] for place in self._turns])

    def _count(self) -> bool:
        """Count a turn, then compare (`Counts`); False if another worker took it."""
        self._words[self._own] += 1
        with self._barrier:
            pass
        if self._used <= self._limit:
            return True
        self._words[self._own] -= 1
        return False

    def _may_take(self, own_ns: int) -> bool:
        """Whether no caller of another worker has waited for longer, or its worker hangs."""
        if self._used >= self._limit:
            self._passed_over_ns = None
            return False
        if not any(0 < self._words[place] < own_ns for place in self._oldest):
            self._passed_over_ns = None
            return True
        now_ns = time.monotonic_ns()
        self._passed_over_ns = self._passed_over_ns or now_ns
        return now_ns - self._passed_over_ns > PATIENCE_S * 1e9


class SharedCounts(Counts):
    """The counts of one worker, and the sums over all.

    Args:
        memory: Shared by all workers; its table of keys has more rows than requests are admitted.
        number: Of this worker, from 0.
    """

    def __init__(self, memory: Segment, number: int) -> None:
        self._memory = memory
        self._number = number
        self._words = memory.words
        self._places = {name: memory.places(Field[name]) for name in _RESOURCES}
        self._queued = memory.place(number, Field.QUEUED)
        self._keys = memory.keys[number]
        self._rows: dict[str, int] = {}
        """Name of a key → its row; kept while rows are left, also if the key is not in use."""
        self._barrier = threading.Lock()

    def add(self, key: str | None, usage: Usage) -> None:
        """Count in this worker's slot, or take back."""
        row = None if key is None else self._row(key)
        for (name, places), number in zip(self._places.items(), astuple(usage), strict=True):
            if number:
                self._words[places[self._number]] += number
                if row is not None:
                    row[KeyField[name]] += number
        with self._barrier:  # POSIX: taking a semaphore synchronizes memory (XBD 4.12)
            pass

    def total(self) -> Usage:
        """All that is in use, by any worker."""
        words = self._words
        return Usage(*(sum([words[place] for place in own]) for own in self._places.values()))

    def of_key(self, name: str) -> Usage:
        """What the requests of one key use, in any worker."""
        keys = self._memory.keys
        of_it = keys[keys[:, :, KeyField.DIGEST] == _digest(name)]
        return Usage(*of_it[:, KeyField.REQUESTS :].sum(axis=0).tolist())

    def requests_elsewhere(self) -> int:
        """Requests of the other workers."""
        return self.total().requests - self._memory.read(self._number, Field.REQUESTS)

    def load(self, queued: int) -> Load:
        """What is in use; the calls that wait in other workers are as these published them last."""
        self._words[self._queued] = queued
        memory = self._memory
        return Load(
            queued=memory.total(Field.QUEUED),
            tokens=memory.total(Field.TOKENS),
            workers=sum(memory.read(worker, Field.BEATS) > 0 for worker in range(memory.workers)),
            worker_restarts=memory.total(Field.RESTARTS),
        )

    def turns(self, limit: int) -> Turns:
        """The turns that the workers share."""
        return SharedTurns(self._memory, self._number, limit)

    def _row(self, name: str) -> NDArray[np.int64]:
        """This worker's row of a key; one that is not in use gives its row away when none is left.

        A row is free of counts when it changes its key.
        """
        if name not in self._rows:
            if len(self._rows) < len(self._keys):
                number = len(self._rows)
            else:
                unused = next(filter(self._is_unused, self._rows), None)
                if unused is None:
                    raise Overloaded("too many keys are in use: try again", retry_after_s=1)
                number = self._rows.pop(unused)
            self._rows[name] = number
            self._keys[number, KeyField.DIGEST] = _digest(name)
        row: NDArray[np.int64] = self._keys[self._rows[name]]
        return row

    def _is_unused(self, name: str) -> bool:
        return not self._keys[self._rows[name], KeyField.REQUESTS :].any()


def _digest(name: str) -> int:
    """63 bits that stand for the name of a key, not 0."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) >> 1 | 1
