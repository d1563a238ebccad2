"""Buffers that arenas have left, kept to be used again.

The first touch of a fresh page is a fault, and in a virtual machine a fault can cost twenty times
what writing the page does; arenas that grow with their sequences would pay for each byte again and
again. What is kept is bounded, and given back by `clear`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Buffer = NDArray[Any]
"""One dimension; an arena's cells are a view of it."""

_SLACK = 1.5
"""A buffer is used again for what is smaller, down to one such part of it."""


class BufferPool:
    """Spare buffers by kind of number, so that what is stale in one is finite in the next.

    Args:
        limit_bytes: What may be kept.

    Attributes:
        spare_bytes: What is kept now.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.spare_bytes = 0
        self._limit_bytes = limit_bytes
        self._spare: list[Buffer] = []  # as they came

    def take(self, needed: int, dtype: str) -> Buffer:
        """A buffer of so many numbers or some more, zero or stale."""
        fitting = [
            spare
            for spare in self._spare
            if spare.dtype == dtype and needed <= spare.size <= _SLACK * needed
        ]
        if not fitting:
            return np.zeros(needed, dtype)
        best = min(fitting, key=lambda spare: spare.size)
        self._drop(best)
        return best

    def give(self, buffer: Buffer) -> None:
        """Keeps a buffer that nobody uses any more; the oldest go when there are too many."""
        if not buffer.size:
            return
        self._spare.append(buffer)
        self.spare_bytes += buffer.nbytes
        while self.spare_bytes > self._limit_bytes:
            self._drop(self._spare[0])

    def clear(self) -> None:
        """Gives everything back."""
        self._spare.clear()
        self.spare_bytes = 0

    def _drop(self, buffer: Buffer) -> None:
        self._spare = [spare for spare in self._spare if spare is not buffer]
        self.spare_bytes -= buffer.nbytes
