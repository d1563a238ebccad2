"""State arenas: one buffer a state tensor, entries contiguous, laid out by growth.

Leading dimension: rows ("R", beams apart) or sequences ("B", beams together). The dimension called
"P" (positions) or "S" (source) is a bucket: it is re-laid when a longer entry comes, kept tight
otherwise, because attention's scratch and bandwidth follow it. No policy lives here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.bundle import Growth, State
from serving.engine.footprint import Extent

FloatArray = NDArray[np.floating[Any]]


class Arena:
    """The buffer of one state for all entries of a group.

    Unused cells are finite (zero or stale), because masked attention multiplies them by zero.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self._axis = next((i for i, size in enumerate(state.shape) if size in ("P", "S")), None)
        self._cells = np.zeros(self._shape(0, 0), state.dtype)

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

    def relay(self, capacity: int, length: int, used: int, used_length: int) -> None:
        """Moves to a buffer of another size, keeping `used` entries of `used_length` each."""
        if (capacity, length) == (self.capacity, self.length):
            return
        cells = np.zeros(self._shape(capacity, length), self.state.dtype)
        kept = (slice(0, used), *self._within(used_length))
        cells[kept] = self._cells[kept]
        self._cells = cells

    def copy(self, source: int, target: int, length: int, origin: Arena | None = None) -> None:
        """Gives entry `target` the first `length` positions of `source`, an entry of `origin`.

        Args:
            origin: Another arena of the same state; this one if not given.
        """
        within = self._within(length)
        self._cells[target][within] = (origin or self)._cells[source][within]

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
        self._cells[(slice(start, start + len(values)), *self._within(length))] = values

    def clear(self, start: int, stop: int) -> None:
        """Sets entries to zero, the initial value of a REPLACE state."""
        self._cells[start:stop] = 0

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
        nbytes: Bytes of all arenas.
    """

    def __init__(self, states: tuple[State, ...], width: int) -> None:
        self.width = width
        self.lengths: list[int] = []
        self.source_lengths: list[int] = []
        self._per_row = [Arena(state) for state in states if state.growth is not Growth.HOLD]
        self._held = [Arena(state) for state in states if state.growth is Growth.HOLD]
        self._extent = Extent()
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

    def reserve(self, sequences: int, length: int, source_length: int = 0) -> None:
        """Makes room for that many sequences, positions and source positions.

        What has become far too large shrinks.
        """
        self._relay(self._extent.settled(self._needed(sequences, length, source_length)))

    def tighten(self) -> None:
        """Gives back all room that no live sequence needs now."""
        self._relay(self._needed(len(self), 0, 0))

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

    def copy_row(self, source: int, target: int, length: int) -> None:
        """Copies what a row holds, up to `length` positions."""
        for arena in self._per_row:
            arena.copy(source, target, length)

    def copy_rows(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Gives each target row what its source row holds, one arena after the other.

        One indexed copy of all pairs would pass through a buffer, and takes 1.4 times as long.
        """
        pairs: dict[int, list[tuple[int, int]]] = {}
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
        for beam in range(self.width):
            self.copy_row(
                source * self.width + beam, target * self.width + beam, self.lengths[source]
            )
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
        rows, entries = len(self) * self.width, len(self)
        for arena in self._per_row:
            arena.relay(extent.sequences * self.width, extent.positions, rows, used)
        for arena in self._held:
            arena.relay(extent.sequences, extent.sources, entries, used_source)
        self._extent = extent
        self.nbytes = sum(arena.nbytes for arena in (*self._per_row, *self._held))
