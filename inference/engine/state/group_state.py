"""All arenas of a group, the lengths of its sequences, and the bytes that they take.

Allocation (`group_state`) and admission (`scheduler`) use the same functions, so what is
reserved equals what is allocated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from inference.bundle.manifest import Growth, State
from inference.engine.state.device import DeviceTensor, item_bytes
from inference.engine.state.state_buffer import BufferPool, StateBuffer

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
        self,
        states: tuple[State, ...],
        width: int,
        pool: BufferPool,
        *,
        is_fixed: bool = False,
    ) -> None:
        self.width = width
        self.prefix = max((state.prefix for state in states), default=0)
        self.lengths: list[int] = []
        self.source_lengths: list[int] = []
        held = [state for state in states if state.growth is Growth.HOLD]
        grown = [state for state in states if state.growth is not Growth.HOLD]
        self._per_row = [StateBuffer(state, pool, is_fixed=is_fixed) for state in grown]
        self._held = [StateBuffer(state, pool, is_fixed=is_fixed) for state in held]
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
        self.lengths.clear()
        self.source_lengths.clear()
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
        del self.lengths[sequences:], self.source_lengths[sequences:]

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
        backwards, length = moves[::-1], max(self.lengths[first:])
        self._device.copy_entries(*(each.copies(backwards, length) for each in self._per_row))

    def copy_rows(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copies each source row to its target row of the same sequence, or of a free slot."""
        pairs: dict[int, list[tuple[int, int]]] = {}  # by length
        for source, target in zip(sources, targets, strict=True):
            pairs.setdefault(self.lengths[source // self.width], []).append((source, target))
        self._device.copy_entries(
            *(
                arena.copies(alike, length)
                for arena in self._per_row
                for length, alike in pairs.items()
            )
        )

    def retire(self, slot: int) -> None:
        """Drops a sequence; the last one moves to its slot."""
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
