"""Memory that the workers and their supervisor share: one slot of 64-bit integers for each worker.

A slot is written by its worker only, and cleared by the supervisor when that worker has ended: what
a killed worker had admitted is free again at once. There is no lock that could be left behind.
"""

from __future__ import annotations

import mmap
import os
from enum import IntEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

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
        for field in Field:
            if field is not Field.RESTARTS:
                self.words[self.place(worker, field)] = 0
        self.keys[worker] = 0
