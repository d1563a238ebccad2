"""Buffers released by arenas, kept for reuse.

The first write to a fresh page is a page fault, which in a virtual machine can cost twenty times
what writing the page costs; arenas that grow with their sequences would pay it again and again.
"""

from __future__ import annotations

from inference.bundle.manifest import Dtype
from inference.engine.state.device import Device, DeviceTensor

_SLACK = 1.5
"""A buffer serves requests down to 1 / `_SLACK` of its size."""


class BufferPool:
    """Spare one-dimensional buffers, reused for the dtype they had: stale values stay finite.

    Args:
        device: Allocates the buffers.
        limit_bytes: Bound on the bytes kept.

    Attributes:
        spare_bytes: Bytes kept now.
    """

    def __init__(self, device: Device, limit_bytes: int) -> None:
        self.device = device
        self.spare_bytes = 0
        self._limit_bytes = limit_bytes
        self._spare: list[DeviceTensor] = []  # oldest first

    def acquire(self, needed: int, dtype: Dtype) -> DeviceTensor:
        """A buffer of at least `needed` elements, zero or stale."""
        fitting = [
            spare
            for spare in (self._spare if needed else ())
            if spare.dtype == dtype and needed <= spare.shape[0] <= _SLACK * needed
        ]
        if not fitting:
            return self.device.allocate(needed, dtype)
        best = min(fitting, key=lambda spare: spare.shape[0])
        self._drop(best)
        return best

    def release(self, buffer: DeviceTensor) -> None:
        """Keeps a buffer that is no longer used; above the limit the oldest are freed."""
        if not buffer.nbytes:
            return
        self._spare.append(buffer)
        self.spare_bytes += buffer.nbytes
        while self.spare_bytes > self._limit_bytes:
            self._drop(self._spare[0])

    def clear(self) -> None:
        """Frees all spare buffers."""
        self._spare.clear()
        self.spare_bytes = 0

    def _drop(self, buffer: DeviceTensor) -> None:
        self._spare = [spare for spare in self._spare if spare is not buffer]
        self.spare_bytes -= buffer.nbytes
