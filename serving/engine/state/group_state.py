"""State arenas: one buffer a state tensor, entries contiguous, laid out by growth.

Leading dimension: rows ("R", beams apart) or sequences ("B", beams together). The dimension called
"P" (positions) or "S" (source) is a bucket: re-laid when a longer entry comes, and never far too
large, because attention's scratch and bandwidth follow it. No policy lives here.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.bundle import Growth, State
from serving.engine.state.buffer_pool import BufferPool
from serving.engine.state.footprint import Extent

FloatArray = NDArray[np.floating[Any]]


class Arena:
    """The buffer of one state for all entries of a group.

    Of what is held, unused cells are zero: masked attention multiplies them by zero, and that
    makes a NaN of a NaN. Other unused cells may be stale, nothing reads them.
    """

    def __init__(self, state: State, memory: BufferPool) -> None:
        self.state = state
        self._axis = next((i for i, size in enumerate(state.shape) if size in ("P", "S")), None)
        self._pool = memory
        self._lay(0, 0)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return int(self._cells.nbytes)

    @property
    def capacity(self) -> int:
        """Entries that fit without re-laying."""
        return len(self._cells)

    @property
    def length(self) -> int:
        """Size of the P or S dimension; 0 where there is none."""
        return 0 if self._axis is None else self._cells.shape[self._axis]

    def view(self, entries: slice) -> FloatArray:
        """A range of entries as one contiguous view, to be bound."""
        return self._cells[entries]

    def relay(self, capacity: int, length: int, used: int, used_length: int, room: int) -> None:
        """Lays out anew for other sizes, keeping `used` entries of `used_length` each.

        Args:
            room: Entries to have addresses for; what nobody has written is no memory yet.
        """
        if (capacity, length) == (self.capacity, self.length):
            return
        if capacity > self.capacity and length == self.length and self._extend(capacity):
            return
        buffer, cells = self._buffer, self._cells
        self._lay(capacity, length, room)
        kept = (slice(0, used), *self._within(used_length))
        self._cells[kept] = cells[kept]
        self._blank(slice(0, used), used_length)
        self._pool.give(buffer)

    def release(self) -> None:
        """Gives back its buffer; nothing may be bound to it any more."""
        buffer = self._buffer
        self._lay(0, 0)
        self._pool.give(buffer)

    def copy(self, source: int, target: int, length: int, origin: Arena | None = None) -> None:
        """Gives entry `target` the first `length` positions of `source`, an entry of `origin`.

        Args:
            origin: Another arena of the same state; this one if not given.
        """
        within = self._within(length)
        self._cells[target][within] = (origin or self)._cells[source][within]
        self._blank(slice(target, target + 1), length)

    def copy_each(self, pairs: Sequence[tuple[int, int]], length: int) -> None:
        """Gives each second entry of these pairs the first `length` positions of the first."""
        cells = self._cells[(slice(None), *self._within(length))]
        for source, target in pairs:
            cells[target] = cells[source]

    def cut(self, entry: int, start: int, stop: int) -> FloatArray:
        """A copy of some positions of an entry."""
        return np.array(self._cells[entry][self._within(stop, start)])

    def paste(self, entry: int, start: int, values: FloatArray) -> None:
        """Writes positions of an entry from `start` on; `values` as `cut` gives them."""
        assert self._axis is not None
        stop = start + values.shape[self._axis - 1]
        self._cells[entry][self._within(stop, start)] = values

    def write(self, start: int, values: FloatArray) -> None:
        """Writes whole entries from `start`; shorter than the bucket is fine."""
        length = 0 if self._axis is None else values.shape[self._axis]
        entries = slice(start, start + len(values))
        self._cells[(entries, *self._within(length))] = values
        self._blank(entries, length)

    def clear(self, start: int, stop: int) -> None:
        """Sets entries to zero, the initial value of a REPLACE state."""
        self._cells[start:stop] = 0

    def _blank(self, entries: slice, length: int) -> None:
        """Sets what is held behind so many positions to zero."""
        if self.state.growth is Growth.HOLD and self._axis is not None:
            self._cells[(entries, *self._within(self.length, length))] = 0

    def _lay(self, capacity: int, length: int, room: int = 0) -> None:
        """Lays cells of these sizes out in another buffer."""
        shape = self._shape(capacity, length)
        needed = max(room, capacity) * prod(shape[1:])
        self._buffer = self._pool.take(needed, self.state.dtype)
        self._cells = self._buffer[: prod(shape)].reshape(shape)

    def _extend(self, capacity: int) -> bool:
        """Counts more entries of the same size where they lie, if there is room behind."""
        shape = self._shape(capacity, self.length)
        if prod(shape) > self._buffer.size:
            return False
        self._cells = self._buffer[: prod(shape)].reshape(shape)
        return True

    def _shape(self, capacity: int, length: int) -> tuple[int, ...]:
        """Numbers for names: the leading dimension, then P or S."""
        inner = [length if isinstance(size, str) else size for size in self.state.shape[1:]]
        return (capacity, *inner)

    def _within(self, stop: int, start: int = 0) -> tuple[slice, ...]:
        """An index below the leading dimension that takes only positions [start, stop)."""
        if self._axis is None:
            return ()
        return (*[slice(None)] * (self._axis - 1), slice(start, stop))


class GroupState:
    """All arenas of a group, and the lengths that say how much of them is in use.

    Attributes:
        lengths: Positions of each sequence (its rows are equally long).
        source_lengths: Source positions of each sequence; 0 where the model has no source.
        reservation: Sizes that may be taken before they are needed.
        expected_sequences: Sequences that are likely to be here soon, with those that are.
        nbytes: Bytes of all arenas.
    """

    def __init__(
        self, states: tuple[State, ...], width: int, memory: BufferPool | None = None
    ) -> None:
        memory = memory or BufferPool(limit_bytes=0)
        self.width = width
        self.lengths: list[int] = []
        self.source_lengths: list[int] = []
        held = [state for state in states if state.growth is Growth.HOLD]
        self._per_row = [Arena(state, memory) for state in states if state not in held]
        self._held = [Arena(state, memory) for state in held]
        self._extent = Extent()
        self.reservation = Extent()
        self.expected_sequences = 0
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def layout(self) -> tuple[int, Extent]:
        """Changes whenever an address or a shape of the live entries does."""
        return len(self), self._extent

    def of(self, growth: Growth) -> list[Arena]:
        """The arenas of one growth, in the manifest's order."""
        arenas = self._held if growth is Growth.HOLD else self._per_row
        return [arena for arena in arenas if arena.state.growth is growth]

    def ensure_capacity(self, sequences: int, length: int, source_length: int = 0) -> None:
        """Makes room for that many sequences, positions and source positions.

        What has become far too large shrinks.
        """
        tight = self._needed(sequences, length, source_length)
        self._relay(self._extent.settled(tight, self.reservation))

    def shrink(self) -> None:
        """Gives back all room that no live sequence needs now."""
        self.reservation = Extent()
        self._relay(self._needed(len(self), 0, 0))

    def release(self) -> None:
        """Drops every sequence and gives all room back."""
        self.lengths.clear()
        self.source_lengths.clear()
        self._extent, self.nbytes = Extent(), 0
        for arena in (*self._per_row, *self._held):
            arena.release()

    def admit(self, length: int, source_length: int) -> None:
        """Counts one more sequence, whose state has been written behind the last."""
        self.lengths.append(length)
        self.source_lengths.append(source_length)

    def adopt(self, other: GroupState) -> None:
        """Takes over the one row of another state behind the last slot; room is reserved."""
        slot, row = len(self), len(self) * self.width
        for mine, theirs in zip(self._per_row, other._per_row, strict=True):
            mine.copy(0, row, other.lengths[0], origin=theirs)
        for mine, theirs in zip(self._held, other._held, strict=True):
            mine.copy(0, slot, other.source_lengths[0], origin=theirs)
        self.admit(other.lengths[0], other.source_lengths[0])

    def truncate(self, sequences: int) -> None:
        """Drops the last slots, back to so many."""
        del self.lengths[sequences:], self.source_lengths[sequences:]

    def grow(self) -> None:
        """Counts one more position of every sequence."""
        self.lengths = [length + 1 for length in self.lengths]

    def spread(self, first: int) -> None:
        """Moves the rows of slots from `first` on, which lie together, to where slots begin."""
        start, count = first * self.width, len(self) - first
        moves = [(start + index, start + index * self.width) for index in range(1, count)]
        if self.width == 1 or not moves:
            return
        for arena in self._per_row:
            # from the last, so that no row is overwritten
            arena.copy_each(moves[::-1], max(self.lengths[first:]))

    def copy_rows(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Gives each target row what its source row holds, one arena after the other.

        One indexed copy of all pairs would pass through a buffer, and takes 1.4 times as long.
        """
        pairs: dict[int, list[tuple[int, int]]] = {}  # by length
        for source, target in zip(sources, targets, strict=True):
            pairs.setdefault(self.lengths[source // self.width], []).append((source, target))
        for arena in self._per_row:
            for length, alike in pairs.items():
                arena.copy_each(alike, length)

    def retire(self, slot: int) -> None:
        """Moves the last sequence into the hole."""
        last = len(self) - 1
        if slot != last:
            self._move(last, slot)
        self.lengths[slot] = self.lengths[last]
        self.source_lengths[slot] = self.source_lengths[last]
        del self.lengths[last], self.source_lengths[last]

    def _move(self, source: int, target: int) -> None:
        rows = range(source * self.width, (source + 1) * self.width)
        self.copy_rows(rows, range(target * self.width, (target + 1) * self.width))
        for arena in self._held:
            arena.copy(source, target, self.source_lengths[source])

    def _needed(self, sequences: int, length: int, source_length: int) -> Extent:
        """The tightest sizes for the live sequences and what is asked for."""
        longest = max((*self.lengths, length))
        return Extent.holding(sequences, longest, max((*self.source_lengths, source_length)))

    def _relay(self, extent: Extent) -> None:
        """Moves everything to buffers of these sizes."""
        if extent == self._extent:
            return
        self._extent = Extent()  # should a buffer not be had, the next call lays out anew
        used, used_source = max(self.lengths, default=0), max(self.source_lengths, default=0)
        rows, entries, width = len(self) * self.width, len(self), self.width
        for arena in self._per_row:
            size = extent.sequences * width
            arena.relay(size, extent.positions, rows, used, self.expected_sequences * width)
        for arena in self._held:
            arena.relay(
                extent.sequences, extent.sources, entries, used_source, self.expected_sequences
            )
        self._extent = extent
        self.nbytes = sum(arena.nbytes for arena in (*self._per_row, *self._held))
