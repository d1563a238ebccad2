"""All state of a group of sequences: its buffers, their sizes, and the bytes that they take.

Allocation (`group_state`) and admission (`scheduler`) use the same functions, so what is
reserved equals what is allocated.

The first dimension is rows ("R", beams apart) or sequences ("B", beams together). The dimension
"P" (positions) or "S" (source) is a bucket: it grows when a longer entry arrives and is never far
too large, because attention's scratch memory and bandwidth follow it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from inference.bundle.manifest import Dtype, Growth, State
from inference.engine.state.device import Device, DeviceTensor, EntryCopies, item_bytes

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
        origin, span = origin or self, (0, length + self._prefix)
        pairs = [(source, target)]
        job = EntryCopies([origin._cells], [self._cells], pairs, self.axis, [span])
        self._device.copy_entries(job)
        self._zero_tail(target, target + 1, length)

    @staticmethod
    def copies(
        alike: Sequence[StateBuffer],
        pairs: Sequence[tuple[int, int]],
        spans: Sequence[tuple[int, int]],
    ) -> EntryCopies:
        """Copies of positions [start, stop), a span a pair; a prefix goes with position 0."""
        cells, prefix = [each._cells for each in alike], alike[0]._prefix
        behind = [(start + prefix if start else 0, stop + prefix) for start, stop in spans]
        return EntryCopies(cells, cells, pairs, alike[0].axis, behind)

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


_SMALLEST_BUCKET = 16


def bucket(length: int, smallest: int = _SMALLEST_BUCKET) -> int:
    """The smallest of 16, 24, 32, 48, 64, 96, … that holds `length`: two sizes an octave."""
    size = smallest
    while size < length:
        if size + size // 2 >= length:
            return size + size // 2
        size *= 2
    return size


@dataclass(frozen=True)
class BufferShape:
    """Sizes of a group's arenas.

    Attributes:
        sequences: Entries of B; rows are `width` times as many.
        positions: P.
        sources: S.
    """

    sequences: int = 0
    positions: int = 0
    sources: int = 0

    @classmethod
    def holding(cls, sequences: int, length: int, source_length: int) -> BufferShape:
        """The smallest sizes for `sequences`, the longest of which has these lengths."""
        places = bucket(sequences, smallest=1) if sequences else 0
        return cls(places, bucket(length), bucket(source_length))

    def adapt(self, tight: BufferShape, reservation: BufferShape) -> BufferShape:
        """Sizes to use when `tight` is needed: the current ones unless far too large.

        Without this slack every admission and retirement would move all states. Entries are given
        back only by `GroupState.shrink` and `release`. New positions are made for as many tokens
        again, within the reservation, so that growing rows are rarely moved.
        """
        positions = max(tight.positions, min(reservation.positions, 2 * tight.positions))
        return BufferShape(
            max(self.sequences, tight.sequences),
            _adapt_size(self.positions, positions, 2 * positions, tight.positions),
            _adapt_size(self.sources, tight.sources, 2 * tight.sources),
        )

    def union(self, other: BufferShape) -> BufferShape:
        """The larger of each size."""
        return BufferShape(
            max(self.sequences, other.sequences),
            max(self.positions, other.positions),
            max(self.sources, other.sources),
        )


@dataclass(frozen=True)
class MemoryModel:
    """Bytes of a model's state.

    Attributes:
        position: Of one position of one row (APPEND).
        row: Of one row, however long (REPLACE, and the prefix of APPEND).
        source: Of one source position of one sequence (HOLD).
        sequence: Of one sequence, however long its source (HOLD of a fixed size).
    """

    position: int = 0
    row: int = 0
    source: int = 0
    sequence: int = 0

    @classmethod
    def of(cls, states: Iterable[State]) -> MemoryModel:
        """The footprint of states with these shapes and dtypes."""
        totals = {"position": 0, "row": 0, "source": 0, "sequence": 0}
        for state in states:
            is_long = any(size in ("P", "S") for size in state.shape)
            held = state.growth is Growth.HOLD
            long, short = ("source", "sequence") if held else ("position", "row")
            kind = long if is_long else short
            cells = prod(size for size in state.shape if isinstance(size, int))
            totals[kind] += cells * item_bytes(state.dtype)
            totals["row"] += state.prefix * cells * item_bytes(state.dtype)
        return cls(**totals)

    def bytes(self, width: int, extent: BufferShape) -> int:
        """Bytes of one group's arenas."""
        a_row = self.row + extent.positions * self.position
        a_sequence = self.sequence + extent.sources * self.source
        return extent.sequences * (width * a_row + a_sequence)


def _adapt_size(current: int, wanted: int, too_large: int, least: int | None = None) -> int:
    """The current size if it is large enough and not too large, else the wanted one."""
    enough = wanted if least is None else least
    return current if enough <= current < too_large else wanted


class GroupState:
    """State of B sequences, `width` rows each, in slots [0, B).

    Args:
        is_fixed: Arenas keep their addresses; see `StateBuffer`.

    Attributes:
        prefix: Positions in front of the first token of each row.
        lengths: Positions of each sequence behind the prefix; its rows are equally long.
        source_lengths: Source positions of each sequence; 0 where the model has no source.
        reservation: Sizes that may be allocated before they are needed.
        expected_sequences: Sequences likely to be live soon, including those that are.
        before_move: Called before the arenas' addresses or sizes change.
        nbytes: Bytes of all arenas.
    """

    def __init__(
        self, states: tuple[State, ...], width: int, pool: BufferPool, *, is_fixed: bool = False
    ) -> None:
        self.width = width
        self.prefix = max((state.prefix for state in states), default=0)
        self.lengths: list[int] = []
        self.source_lengths: list[int] = []
        held = [state for state in states if state.growth is Growth.HOLD]
        grown = [state for state in states if state.growth is not Growth.HOLD]
        self._per_row = [StateBuffer(state, pool, is_fixed=is_fixed) for state in grown]
        self._held = [StateBuffer(state, pool, is_fixed=is_fixed) for state in held]
        alike: dict[object, list[StateBuffer]] = {}
        for state, arena in zip(grown, self._per_row, strict=True):
            alike.setdefault((state.shape, state.dtype, state.prefix), []).append(arena)
        self._alike = list(alike.values())
        # of each sequence, (width, width): positions from 0 on in which two of its rows are equal
        self._common: list[NDArray[np.int64]] = []
        self._device = pool.device
        self._extent = BufferShape()
        self.reservation = BufferShape()
        self.expected_sequences = 0
        self.before_move: Callable[[], object] = lambda: None
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def layout(self) -> tuple[int, BufferShape]:
        """Differs whenever an address or a shape of the live entries does."""
        return len(self), self._extent

    @property
    def capacity(self) -> int:
        """Sequences that fit without a new layout."""
        return self._extent.sequences

    def of(self, growth: Growth) -> list[StateBuffer]:
        """The arenas of one growth, in the manifest's order."""
        arenas = self._held if growth is Growth.HOLD else self._per_row
        return [arena for arena in arenas if arena.state.growth is growth]

    def ensure_capacity(self, sequences: int, length: int, source_length: int = 0) -> None:
        """Makes arenas large enough, and smaller where they have become far too large."""
        tight = self._needed_shape(sequences, length, source_length)
        self._resize(self._extent.adapt(tight, self.reservation))

    def shrink(self) -> None:
        """Gives back what the live sequences do not need now."""
        self.reservation = BufferShape()
        self._resize(self._needed_shape(len(self), 0, 0))

    def release(self) -> None:
        """Drops every sequence and returns all buffers to the pool, but for fixed ones."""
        self.before_move()
        self.truncate(0)
        self._extent, self.nbytes = BufferShape(), 0
        self.reservation, self.expected_sequences = BufferShape(), 0
        for arena in (*self._per_row, *self._held):
            arena.release()

    def write_held(self, first: int, values: Mapping[str, DeviceTensor]) -> None:
        """Writes the HOLD states of slots from `first` on.

        Args:
            values: By the names of the outputs of `admit`.
        """
        for arena in self._held:
            assert arena.state.admit_output is not None
            arena.write(first, values[arena.state.admit_output])

    def admit(self, length: int, source_length: int) -> None:
        """Adds a sequence whose state has been written behind the last slot."""
        self.lengths.append(length)
        self.source_lengths.append(source_length)
        self._common.append(np.zeros((self.width, self.width), np.int64))

    def adopt(self, other: GroupState) -> None:
        """Copies the one row of another state behind the last slot; capacity is ensured."""
        slot, row = len(self), len(self) * self.width
        for mine, theirs in zip(self._per_row, other._per_row, strict=True):
            mine.copy(0, row, other.lengths[0], origin=theirs)
        for mine, theirs in zip(self._held, other._held, strict=True):
            mine.copy(0, slot, other.source_lengths[0], origin=theirs)
        self.admit(other.lengths[0], other.source_lengths[0])

    def truncate(self, sequences: int) -> None:
        """Drops the last slots; `sequences` remain."""
        del self.lengths[sequences:], self.source_lengths[sequences:], self._common[sequences:]

    def advance_lengths(self, count: int = 1) -> None:
        """Makes every sequence longer by some positions."""
        self.lengths = [length + count for length in self.lengths]

    def spread(self, first: int) -> None:
        """Moves the rows of slots from `first` on, now adjacent, to their slots."""
        start, count = first * self.width, len(self) - first
        moves = [(start + index, start + index * self.width) for index in range(1, count)]
        if self.width == 1 or not moves:
            return
        # from the last, so that no row is overwritten before it is read
        self._copy(moves[::-1], [(0, max(self.lengths[first:]))] * len(moves))

    def copy_rows(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copies each source row to its target row of the same sequence.

        What both have from a common ancestor stays: of beams most of their positions.
        """
        pairs = list(zip(sources, targets, strict=True))
        self._copy(pairs, [self._take_over(source, target) for source, target in pairs])

    def _take_over(self, source: int, target: int) -> tuple[int, int]:
        """Positions [start, stop) that a row must get to equal another one of its sequence."""
        slot, one = divmod(source, self.width)
        other, common, stop = target % self.width, self._common[slot], self.lengths[slot]
        start = int(common[one, other])
        common[other] = common[:, other] = common[one]
        common[one, other] = common[other, one] = stop
        return start, stop

    def _copy(self, pairs: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]) -> None:
        jobs = (StateBuffer.copies(arenas, pairs, spans) for arenas in self._alike)
        self._device.copy_entries(*jobs)

    def retire(self, slot: int) -> None:
        """Drops a sequence; the last one moves to its slot."""
        last = len(self) - 1
        if slot != last:
            self._move(last, slot)
        self.lengths[slot] = self.lengths[last]
        self.source_lengths[slot] = self.source_lengths[last]
        self._common[slot] = self._common[last]
        self.truncate(last)

    def _move(self, source: int, target: int) -> None:
        places = range(self.width)
        pairs = [(source * self.width + n, target * self.width + n) for n in places]
        self._copy(pairs, [(0, self.lengths[source])] * self.width)
        for arena in self._held:
            arena.copy(source, target, self.source_lengths[source])

    def _needed_shape(self, sequences: int, length: int, source_length: int) -> BufferShape:
        """The smallest sizes for the live sequences and the given ones."""
        longest = max((*self.lengths, length))
        return BufferShape.holding(sequences, longest, max((*self.source_lengths, source_length)))

    def _resize(self, extent: BufferShape) -> None:
        """Moves all states to buffers of these sizes."""
        if extent == self._extent:
            return
        self.before_move()
        self._extent = BufferShape()  # if an allocation fails, the next call lays out anew
        used, used_source = max(self.lengths, default=0), max(self.source_lengths, default=0)
        width, expected = self.width, self.expected_sequences
        for arena in self._per_row:
            rows = extent.sequences * width
            arena.resize(rows, extent.positions, len(self) * width, used, expected * width)
        for arena in self._held:
            arena.resize(extent.sequences, extent.sources, len(self), used_source, expected)
        self._extent = extent
        self.nbytes = sum(arena.nbytes for arena in (*self._per_row, *self._held))
