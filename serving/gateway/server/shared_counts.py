"""The counts of a gateway of several workers: each counts in its own slot, limits hold for the sum.

No lock is taken. A worker counts its share first and reads all slots then; between the two is a
memory barrier, so that of two workers which count at the same moment at least one sees the other's
share: never more than the limit is admitted. Both may see each other, and be refused together.
"""

from __future__ import annotations

import hashlib
import threading

import numpy as np
from numpy.typing import NDArray

from inference.errors import Overloaded
from serving.gateway.admission.counts import Turns, Usage
from serving.gateway.observability.metrics import Load
from serving.gateway.server.shared_memory import Field, KeyField, Segment
from serving.gateway.server.shared_turns import SharedTurns


class SharedCounts:
    """The counts of one worker, and the sums over all.

    Args:
        segment: Shared by all workers; its table of keys has more rows than requests are admitted.
        number: Of this worker, from 0.
    """

    def __init__(self, segment: Segment, number: int) -> None:
        self._segment = segment
        self._number = number
        self._words = segment.words
        self._requests = segment.places(Field.REQUESTS)
        self._tokens = segment.places(Field.TOKENS)
        self._pixels = segment.places(Field.PIXELS)
        self._bytes = segment.places(Field.BYTES)
        self._queued = segment.places(Field.QUEUED)
        self._keys = segment.keys[number]
        self._rows: dict[str, int] = {}
        """Name of a key → its row; kept while rows are left, also if the key is not in use."""
        self._barrier = threading.Lock()

    def add(self, key: str | None, usage: Usage) -> None:
        """Count in this worker's slot, or take back."""
        row = None if key is None else self._row(key)
        for places, field, number in (
            (self._requests, KeyField.REQUESTS, usage.requests),
            (self._tokens, KeyField.TOKENS, usage.tokens),
            (self._pixels, KeyField.PIXELS, usage.pixels),
            (self._bytes, KeyField.BYTES, usage.bytes),
        ):
            if number:
                self._words[places[self._number]] += number
                if row is not None:
                    row[field] += number
        with self._barrier:  # POSIX: taking a semaphore synchronizes memory (XBD 4.12)
            pass

    def total(self) -> Usage:
        """All that is in use, by any worker."""
        words = self._words
        return Usage(
            requests=sum([words[place] for place in self._requests]),
            tokens=sum([words[place] for place in self._tokens]),
            pixels=sum([words[place] for place in self._pixels]),
            bytes=sum([words[place] for place in self._bytes]),
        )

    def of_key(self, name: str) -> Usage:
        """What the requests of one key use, in any worker."""
        keys = self._segment.keys
        of_it = keys[keys[:, :, KeyField.DIGEST] == _digest(name)]
        return Usage(*of_it[:, KeyField.REQUESTS :].sum(axis=0).tolist())

    def requests_elsewhere(self) -> int:
        """Requests of the other workers."""
        return self.total().requests - int(self._words[self._requests[self._number]])

    def load(self, queued: int) -> Load:
        """What is in use; the calls that wait in other workers are as these published them last."""
        self._words[self._queued[self._number]] = queued
        segment = self._segment
        return Load(
            queued=segment.total(Field.QUEUED),
            tokens=segment.total(Field.TOKENS),
            workers=sum(segment.read(worker, Field.BEATS) > 0 for worker in range(segment.workers)),
            worker_restarts=segment.total(Field.RESTARTS),
        )

    def turns(self, limit: int) -> Turns:
        """The turns that the workers share."""
        return SharedTurns(self._segment, self._number, limit)

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
