"""What `admit` computes of single images, kept for later prompts that hold the same ones.

A conversation sends its pictures again with every turn, and many questions may be about one.

Decision D104.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from inference.engine.state.device import DeviceTensor

Key = bytes


class ImageStates:
    """HOLD states of images by their pixels; evicts the least recently used.

    Args:
        capacity_bytes: Bound on the bytes of all states; nothing larger is kept.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._held: LRUCache[Key, Sequence[DeviceTensor]] = LRUCache(capacity_bytes, _size)

    @property
    def nbytes(self) -> int:
        """Of all states."""
        return int(self._held.currsize)

    @staticmethod
    def key(pixels: NDArray[np.uint8], source_ids: NDArray[np.int64] | None = None) -> Key:
        """Of one image, (height, width, 3), its size, and the text that is read with it."""
        size = np.array(pixels.shape[:2], np.int64).tobytes()
        digest = hashlib.blake2b(np.ascontiguousarray(pixels).data, digest_size=32, salt=size)
        if source_ids is not None:
            digest.update(np.ascontiguousarray(source_ids).data)
        return digest.digest()

    def get(self, key: Key) -> Sequence[DeviceTensor] | None:
        """One tensor (1, …) for each HOLD state, in the manifest's order; None if not kept."""
        return self._held.get(key)

    def put(self, key: Key, states: Sequence[DeviceTensor]) -> None:
        """Keeps the states of an image."""
        if key not in self._held and _size(states) <= self._held.maxsize:
            self._held[key] = states

    def clear(self) -> None:
        """Drops everything."""
        self._held.clear()


def _size(states: Sequence[DeviceTensor]) -> int:
    return sum(each.nbytes for each in states)
