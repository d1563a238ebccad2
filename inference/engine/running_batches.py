"""All running batches of one model, and the rows and bytes that they share.

Memory is reserved for the maximal length of each sequence, so that no running sequence is ever
preempted; sequences that do not fit yet wait in the queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from inference.engine.runners.protocol import Runner
from inference.engine.running_batch import RunningBatch, longest
from inference.engine.scheduler import Capacity
from inference.engine.search.request import EngineRequest
from inference.engine.sequence import SequenceState
from inference.engine.state.memory_model import BufferShape
from inference.engine.state.prefix_cache import Block, PrefixCache
from inference.errors import InvalidRequest, TooLong

_MEBIBYTE = 1 << 20


class RunningBatches:
    """One running batch for each width in use."""

    def __init__(
        self, runner: Runner, capacity: Capacity, prefixes: PrefixCache[Block] | None
    ) -> None:
        self._runner = runner
        self._capacity = capacity
        self._footprint = runner.footprint
        self._prefixes = prefixes
        self._by_width: dict[int, RunningBatch] = {}

    def __iter__(self) -> Iterator[RunningBatch]:
        """A snapshot: batches may be reset or dropped during iteration."""
        return iter(list(self._by_width.values()))

    @property
    def rows(self) -> int:
        """Rows in use over all widths."""
        return sum(running.rows for running in self._by_width.values())

    @property
    def state_bytes(self) -> int:
        """Bytes that all arenas hold now."""
        return sum(running.state_bytes for running in self._by_width.values())

    def check_fits(self, request: EngineRequest) -> None:
        """Refuses what could never run, not even alone. Thread-safe.

        Raises:
            InvalidRequest: more rows than the engine has.
            TooLong: its state needs more memory than the engine has.
        """
        if request.rules.rows > self._capacity.rows:
            raise InvalidRequest(
                f"{request.rules.rows} beams or samples are more rows than the engine's "
                f"{self._capacity.rows}: ask for fewer",
                field="best_of" if request.rules.do_sample else "num_beams",
            )
        extent = BufferShape.holding(1, request.final_length, request.source_length)
        needed = self._footprint.bytes(request.rules.rows, extent)
        needed += self._prefill_bytes(request)
        if needed > self._capacity.state_bytes:
            raise TooLong(
                f"up to {request.final_length} positions in {request.rules.rows} rows need "
                f"{needed // _MEBIBYTE} MiB, the engine has "
                f"{self._capacity.state_bytes // _MEBIBYTE} MiB: ask for fewer tokens or beams"
            )

    def fits(self, joining: Sequence[SequenceState]) -> bool:
        """Whether rows and memory suffice for newcomers of one width beside all that run."""
        width = joining[0].width
        if self.rows + len(joining) * width > self._capacity.rows:
            return False
        return self._needed_bytes(joining, width) <= self._capacity.state_bytes

    def reserve(self, joining: Sequence[SequenceState], waiting: int) -> RunningBatch:
        """The batch of the newcomers' width, created if needed, with memory reserved for them.

        Args:
            waiting: Sequences still in the queue.
        """
        width = joining[0].width
        if width not in self._by_width:
            self._by_width[width] = RunningBatch(
                self._runner.group(width),
                self._runner.align,
                self._prefixes,
                defers_prefill=self._runner.supports_deferred_admission,
                greedy_steps=self._runner.greedy_steps,
            )
        if self._reserved_bytes(joining, width) > self._capacity.state_bytes:
            for running in self._by_width.values():
                running.shrink()
        running = self._by_width[width]
        running.reserve(joining, self._expected_sequences(running, joining, waiting))
        return running

    def reset(self, running: RunningBatch) -> list[SequenceState]:
        """Replaces the group of a batch whose state is suspect; returns its sequences."""
        return running.restart(self._runner.group(running.group.width))

    def drop_empty(self) -> None:
        """Frees the arenas of batches without sequences."""
        for width, running in list(self._by_width.items()):
            if not running.rows:
                running.group.release()
                del self._by_width[width]

    def clear(self) -> list[SequenceState]:
        """Drops everything; returns the sequences."""
        members = [sequence for running in self for sequence in running.members]
        self._by_width.clear()
        return members

    def _expected_sequences(
        self, running: RunningBatch, joining: Sequence[SequenceState], waiting: int
    ) -> int:
        """Sequences likely to be in a batch soon, within rows and memory."""
        width = running.group.width
        reservation = running.reservation.covering(running.needs(joining))
        each = self._footprint.bytes(width, replace(reservation, sequences=1))
        return min(
            len(running.members) + len(joining) + waiting,
            self._capacity.rows // width,
            self._capacity.state_bytes // max(1, each),
        )

    def _needed_bytes(self, joining: Sequence[SequenceState], width: int) -> int:
        """Bytes needed once every batch has shrunk, a single newcomer's prefill included."""
        extents = {each: running.needs() for each, running in self._by_width.items()}
        running = self._by_width.get(width)
        extents[width] = running.needs(joining) if running else longest(joining)
        return self._bytes(extents, joining)

    def _reserved_bytes(self, joining: Sequence[SequenceState], width: int) -> int:
        """Bytes that the arenas may grow to if no batch shrinks."""
        extents = {each: running.reservation for each, running in self._by_width.items()}
        running = self._by_width[width]
        extents[width] = running.reservation.covering(running.needs(joining))
        return self._bytes(extents, joining)

    def _bytes(self, extents: dict[int, BufferShape], joining: Sequence[SequenceState]) -> int:
        total = sum(self._footprint.bytes(width, extent) for width, extent in extents.items())
        prefilling = [each.sequence for running in self for each in running.prefilling]
        if len(joining) == 1:
            prefilling += joining
        return total + sum(self._prefill_bytes(sequence.request) for sequence in prefilling)

    def _prefill_bytes(self, request: EngineRequest) -> int:
        """Bytes of a chunked prefill's own arenas, beside its slot."""
        if not self._runner.takes_chunks:
            return 0
        extent = BufferShape.holding(1, len(request.decoder_ids), request.source_length)
        return self._footprint.bytes(1, extent)
