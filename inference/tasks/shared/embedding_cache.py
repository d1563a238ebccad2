"""Embeddings of texts from earlier requests: the same labels are sent with many images."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from cachetools import LRUCache

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Embedded:
    """A text's embedding (D,), its number of tokens, and the characters that were cut off."""

    vector: Vector
    tokens: int
    cut_characters: int = 0


class EmbeddingCache:
    """Embeddings of one version of a model, by text; evicts the least recently used.

    Methods may be called from any thread.

    Args:
        capacity: Entries; at 512 floats each, 10 000 take 20 MB. 0: nothing is kept.
    """

    def __init__(self, capacity: int = 10_000) -> None:
        self._entries: LRUCache[str, Embedded] = LRUCache(capacity)
        self._lock = threading.Lock()

    def get(self, text: str) -> Embedded | None:
        """The embedding of a text, None if it is not cached."""
        with self._lock:
            return self._entries.get(text)

    def put(self, text: str, entry: Embedded) -> None:
        """Store an embedding."""
        if self._entries.maxsize:
            with self._lock:
                self._entries[text] = entry

    def __len__(self) -> int:
        return len(self._entries)
