"""Sizes of arenas in bytes, computed before allocation.

Allocation (`group_state`) and admission (`running_batches`) use the same functions, so what is
reserved equals what is allocated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from inference.bundle.manifest import Growth, State
from inference.engine.state.device import item_bytes

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

    def settled(self, tight: BufferShape, reservation: BufferShape) -> BufferShape:
        """Sizes to use when `tight` is needed: the current ones unless far too large.

        Without this slack every admission and retirement would move all states. Entries are given
        back only by `GroupState.shrink` and `release`. New positions are made for as many tokens
        again, within the reservation, so that growing rows are rarely moved.
        """
        positions = max(tight.positions, min(reservation.positions, 2 * tight.positions))
        return BufferShape(
            max(self.sequences, tight.sequences),
            _settled(self.positions, positions, 2 * positions, tight.positions),
            _settled(self.sources, tight.sources, 2 * tight.sources),
        )

    def covering(self, other: BufferShape) -> BufferShape:
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


def _settled(current: int, wanted: int, too_large: int, least: int | None = None) -> int:
    """The current size if it is large enough and not too large, else the wanted one."""
    enough = wanted if least is None else least
    return current if enough <= current < too_large else wanted
