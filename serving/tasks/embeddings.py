"""Text embeddings that were computed before: the same labels come with every picture."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Embedded:
    """A text's normalised embedding (D,) and how many tokens it took."""

    vector: Vector
    tokens: int


class EmbeddingCache:
    """The least recently used go first. Methods may be called from any thread.

    Args:
        capacity: Entries; at 512 floats each, 10 000 take 20 MB.
    """

    def __init__(self, capacity: int = 10_000) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[tuple[str, int, str], Embedded] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, model: str, version: int, text: str) -> Embedded | None:
        """What was stored for a text under this version of a model."""
        key = (model, version, text)
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
            return entry

    def put(self, model: str, version: int, text: str, entry: Embedded) -> None:
        """Store an embedding, forgetting the least recently used beyond capacity."""
        key = (model, version, text)
        with self._lock:
            self._entries[key] = entry
            self._entries.move_to_end(key)
            while len(self._entries) > self._capacity:
                self._entries.popitem(last=False)

    def __len__(self) -> int:
        return len(self._entries)
