"""The buffer of one state tensor for all entries of a group, contiguous, laid out by growth.

The first dimension is rows ("R", beams apart) or sequences ("B", beams together). The dimension
"P" (positions) or "S" (source) is a bucket: it grows when a longer entry arrives and is never far
too large, because attention's scratch memory and bandwidth follow it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import prod

from inference.bundle.manifest import Dtype, Growth, State
from inference.engine.state.device import Device, DeviceTensor, EntryCopies

_SLACK = 1.5
"""A buffer serves requests down to 1 / `_SLACK` of its size."""


class BufferPool:
    """Spare one-dimensional buffers, reused for the dtype they had: stale values stay finite.

    The first write to a fresh page is a page fault, which in a virtual machine can cost twenty
    times what writing the page costs; arenas that grow with their sequences would pay it again and
    again.

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


class StateBuffer:
    """Cells (entries, …) of one state in a device's memory.

    Unused cells of a HOLD state are zero: masked attention multiplies them by zero, and zero times
    NaN is NaN. Other unused cells may be stale; they are never read.

    Lengths and positions count tokens; the prefix of an APPEND state lies in front of them and is
    moved with them.

    Args:
        is_fixed: Keep the buffer, and with it the address, for every layout that it can hold; a
            larger one is of twice the size, so that addresses change a few times at most.

    Attributes:
        capacity: Entries that fit without a new layout.
        length: Size of the P (without the prefix) or S dimension; 0 where there is none.
        axis: Index of that dimension, if any.
    """

    def __init__(self, state: State, pool: BufferPool, *, is_fixed: bool = False) -> None:
        self.state, self._is_fixed = state, is_fixed
        self.axis = next((i for i, size in enumerate(state.shape) if size in ("P", "S")), None)
        self._prefix = state.prefix
        self._pool, self._device = pool, pool.device
        self._buffer = pool.acquire(0, state.dtype)
        self._lay_out(0, 0)

    @property
    def nbytes(self) -> int:
        """Bytes of all cells."""
        return self._cells.nbytes

    def view(self, entries: slice) -> DeviceTensor:
        """A range of entries, to be bound to a graph."""
        return self._device.entries(self._cells, entries.start, entries.stop)

    def resize(self, capacity: int, length: int, used: int, used_length: int, room: int) -> None:
        """Moves to a layout of other sizes, keeping `used` entries of `used_length` positions.

        Args:
            room: Entries to reserve addresses for; pages never written take no memory.
        """
        if (capacity, length) == (self.capacity, self.length):
            return
        if capacity > self.capacity and length == self.length and self._extend(capacity):
            return
        if self._is_fixed and self._lay_out_in_place(capacity, length, used, used_length):
            return
        buffer, cells = self._buffer, self._cells
        self._allocate(capacity, length, room)
        if used:
            source, kept = self._device.entries(cells, 0, used), used_length + self._prefix
            self._device.copy(source, self.view(slice(0, used)), axis=self.axis, length=kept)
            self._zero_tail(0, used, used_length)
        self._pool.release(buffer)

    def release(self) -> None:
        """Returns the buffer to the pool; nothing may be bound to it any more.

        A fixed one is kept, for the next sequences.
        """
        if self._is_fixed:
            self._lay_out(0, 0)
            return
        buffer = self._buffer
        self._allocate(0, 0)
        self._pool.release(buffer)

    def copy(
        self, source: int, target: int, length: int, origin: StateBuffer | None = None
    ) -> None:
        """Copies the first `length` positions of an entry of `origin` to entry `target`.

        Args:
            origin: An arena of the same state; by default this one.
        """
        self._device.copy_entries(self.copies([(source, target)], length, origin))
        self._zero_tail(target, target + 1, length)

    def copies(
        self, pairs: Sequence[tuple[int, int]], length: int, origin: StateBuffer | None = None
    ) -> EntryCopies:
        """Copies of the first `length` positions, for each (entry of `origin`, entry of this one).

        For a HOLD state `copy` also clears what lies behind them.
        """
        cells, copied = (origin or self)._cells, length + self._prefix
        return EntryCopies(cells, self._cells, pairs, self.axis, copied)

    def read_positions(self, entry: int, start: int, stop: int) -> DeviceTensor:
        """A copy of positions [start, stop) of an entry, (1, …), of a state without a prefix."""
        assert self.axis is not None
        assert not self._prefix
        shape = self._shape(1, stop - start)
        copied = self._device.view(self._device.allocate(prod(shape), self.state.dtype), shape)
        source = self.view(slice(entry, entry + 1))
        self._device.copy(source, copied, axis=self.axis, length=stop - start, source_start=start)
        return copied

    def write_positions(
        self, entry: int, start: int, values: DeviceTensor, length: int | None = None
    ) -> None:
        """Writes positions of an entry from `start` on; `values` as `read_positions` gives them.

        Args:
            length: Of `values`, the first positions that are written; by default all.
        """
        assert self.axis is not None
        target = self.view(slice(entry, entry + 1))
        length = values.shape[self.axis] if length is None else length
        self._device.copy(values, target, axis=self.axis, length=length, target_start=start)

    def write(self, start: int, values: DeviceTensor) -> None:
        """Writes whole entries or prefixes from `start` on; they may be shorter than the bucket."""
        length = 0 if self.axis is None else values.shape[self.axis]
        stop = start + values.shape[0]
        self._device.copy(values, self.view(slice(start, stop)), axis=self.axis, length=length)
        self._zero_tail(start, stop, length)

    def clear(self, start: int, stop: int) -> None:
        """Sets entries to zero: the initial value of a REPLACE state, a HOLD state of nothing."""
        self._device.zero(self.view(slice(start, stop)))

    def _zero_tail(self, start: int, stop: int, length: int) -> None:
        """Zeroes what entries of a HOLD state have behind so many positions."""
        if self.state.growth is Growth.HOLD and self.axis is not None and length < self.length:
            self._device.zero(self.view(slice(start, stop)), axis=self.axis, start=length)

    def _allocate(self, capacity: int, length: int, room: int = 0) -> None:
        """Lays cells of these sizes out in another buffer."""
        needed = max(room, capacity) * prod(self._shape(1, length)[1:])
        self._buffer = self._larger_buffer(needed)
        self._lay_out(capacity, length)

    def _larger_buffer(self, needed: int) -> DeviceTensor:
        """A buffer of so many elements; for a fixed arena more, if the device has room."""
        doubled = 2 * self._buffer.shape[0] if self._is_fixed else 0
        if doubled > needed:
            with suppress(MemoryError):
                return self._pool.acquire(doubled, self.state.dtype)
        return self._pool.acquire(needed, self.state.dtype)

    def _lay_out(self, capacity: int, length: int) -> None:
        self._cells = self._device.view(self._buffer, self._shape(capacity, length))
        self.capacity, self.length = capacity, 0 if self.axis is None else length

    def _extend(self, capacity: int) -> bool:
        """Adds entries in place if the buffer is large enough; returns whether it was."""
        if not self._can_hold(capacity, self.length):
            return False
        self._lay_out(capacity, self.length)
        return True

    def _can_hold(self, capacity: int, length: int) -> bool:
        """Whether a layout of these sizes fits the buffer."""
        return prod(self._shape(capacity, length)) <= self._buffer.shape[0]

    def _lay_out_in_place(self, capacity: int, length: int, used: int, used_length: int) -> bool:
        """Changes the layout in the same buffer if that is large enough; returns whether it was.

        Entries that would overlap their new places pass through another buffer.
        """
        if not self._can_hold(capacity, length):
            return False
        kept = used_length + self._prefix
        if self.axis is None or length == self.length or not used or not kept:
            self._lay_out(capacity, length)
            return True
        packed_shape = self._shape(used, used_length)
        buffer = self._pool.acquire(prod(packed_shape), self.state.dtype)
        packed = self._device.view(buffer, packed_shape)
        self._device.copy(self.view(slice(0, used)), packed, axis=self.axis, length=kept)
        self._lay_out(capacity, length)
        self._device.copy(packed, self.view(slice(0, used)), axis=self.axis, length=kept)
        self._zero_tail(0, used, used_length)
        self._pool.release(buffer)
        return True

    def _shape(self, capacity: int, length: int) -> tuple[int, ...]:
        """Sizes for names: the first dimension, then P or S."""
        length += self._prefix
        inner = [length if isinstance(size, str) else size for size in self.state.shape[1:]]
        return (capacity, *inner)
