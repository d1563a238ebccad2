"""All running_batches of one model, and the rows and bytes that they share.

BufferPool is granted for the longest that a sequence may get, so that nothing that runs ever has to
give way, and who does not fit yet waits for others to end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from serving.engine.request import EngineRequest
from serving.engine.runners.protocol import Runner
from serving.engine.running_batch import RunningBatch, longest
from serving.engine.scheduler import Capacity
from serving.engine.sequence import SequenceState
from serving.engine.state.footprint import Extent
from serving.engine.state.prefix_cache import Block, PrefixCache
from serving.errors import InvalidRequest, TooLong

_MEBIBYTE = 1 << 20


class RunningBatches:
    """One running_batch for each width in use."""

    def __init__(
        self, runner: Runner, capacity: Capacity, prefixes: PrefixCache[Block] | None
    ) -> None:
        self._runner = runner
        self._capacity = capacity
        self._footprint = runner.footprint
        self._prefixes = prefixes
        self._by_width: dict[int, RunningBatch] = {}

    def __iter__(self) -> Iterator[RunningBatch]:
        """The running_batches, which may be lost or dropped meanwhile."""
        return iter(list(self._by_width.values()))

    @property
    def rows(self) -> int:
        """Rows in use over all widths."""
        return sum(running_batch.rows for running_batch in self._by_width.values())

    @property
    def state_bytes(self) -> int:
        """Bytes that all arenas hold now."""
        return sum(running_batch.state_bytes for running_batch in self._by_width.values())

    def check_fits(self, request: EngineRequest) -> None:
        """Says what could never run, not even alone. For any thread.

        Raises:
            InvalidRequest: it asks for more rows than there are.
            TooLong: its state would need more memory than there is.
        """
        if request.rules.rows > self._capacity.rows:
            raise InvalidRequest(
                f"{request.rules.rows} beams or samples are more rows than the engine's "
                f"{self._capacity.rows}: ask for fewer",
                field="best_of" if request.rules.do_sample else "num_beams",
            )
        extent = Extent.holding(1, request.final_length, request.source_length)
        needed = self._footprint.bytes(request.rules.rows, extent)
        needed += self._reading_bytes(request)
        if needed > self._capacity.state_bytes:
            raise TooLong(
                f"up to {request.final_length} positions in {request.rules.rows} rows need "
                f"{needed // _MEBIBYTE} MiB, the engine has "
                f"{self._capacity.state_bytes // _MEBIBYTE} MiB: ask for fewer tokens or beams"
            )

    def fit(self, joining: Sequence[SequenceState]) -> bool:
        """Whether there are rows and memory for newcomers of one width, and for all that run."""
        width = joining[0].width
        if self.rows + len(joining) * width > self._capacity.rows:
            return False
        return self._needed_bytes(joining, width) <= self._capacity.state_bytes

    def of(self, joining: Sequence[SequenceState], waiting: int) -> RunningBatch:
        """The batch of the newcomers' width, created if needed, with memory reserved for them.

        Args:
            waiting: Sequences that may come next.
        """
        width = joining[0].width
        if width not in self._by_width:
            self._by_width[width] = RunningBatch(
                self._runner.group(width),
                self._runner.align,
                self._prefixes,
                supports_deferred_admission=self._runner.supports_deferred_admission,
            )
        if self._reserved_bytes(joining, width) > self._capacity.state_bytes:
            for running_batch in self._by_width.values():
                running_batch.shrink()
        running_batch = self._by_width[width]
        running_batch.reserve(joining, self._expected_sequences(running_batch, joining, waiting))
        return running_batch

    def lose(self, running_batch: RunningBatch) -> list[SequenceState]:
        """Replaces the group of a batch whose state is suspect; returns its sequences."""
        return running_batch.restart(self._runner.group(running_batch.group.width))

    def drop_empty(self) -> None:
        """Frees the arenas that nobody uses."""
        for width, running_batch in list(self._by_width.items()):
            if not running_batch.rows:
                running_batch.group.release()
                del self._by_width[width]

    def clear(self) -> list[SequenceState]:
        """Drops everything; returns who was there."""
        members = [
            sequence
            for running_batch in self._by_width.values()
            for sequence in running_batch.members
        ]
        self._by_width.clear()
        return members

    def _expected_sequences(
        self, running_batch: RunningBatch, joining: Sequence[SequenceState], waiting: int
    ) -> int:
        """Sequences that are likely to be in a running_batch soon, as far as rows and memory go."""
        width, reservation = (
            running_batch.group.width,
            running_batch.reservation.covering(running_batch.needs(joining)),
        )
        each = self._footprint.bytes(width, replace(reservation, sequences=1))
        return min(
            len(running_batch.members) + len(joining) + waiting,
            self._capacity.rows // width,
            self._capacity.state_bytes // max(1, each),
        )

    def _needed_bytes(self, joining: Sequence[SequenceState], width: int) -> int:
        """Bytes that will do once everything is tight, a lone newcomer's reading included."""
        extents = {w: running_batch.needs() for w, running_batch in self._by_width.items()}
        running_batch = self._by_width.get(width)
        extents[width] = running_batch.needs(joining) if running_batch else longest(joining)
        return self._bytes(extents, joining)

    def _reserved_bytes(self, joining: Sequence[SequenceState], width: int) -> int:
        """Bytes that the arenas may come to hold when nothing is tightened."""
        extents = {w: running_batch.reservation for w, running_batch in self._by_width.items()}
        running_batch = self._by_width[width]
        extents[width] = running_batch.reservation.covering(running_batch.needs(joining))
        return self._bytes(extents, joining)

    def _bytes(self, extents: dict[int, Extent], joining: Sequence[SequenceState]) -> int:
        total = sum(self._footprint.bytes(width, extent) for width, extent in extents.items())
        reading = [
            prefilling.sequence for running_batch in self for prefilling in running_batch.prefilling
        ]
        if len(joining) == 1:
            reading += joining
        return total + sum(self._reading_bytes(sequence.request) for sequence in reading)

    def _reading_bytes(self, request: EngineRequest) -> int:
        """What a prompt takes while it is read in pieces, apart from its slot."""
        if not self._runner.takes_chunks:
            return 0
        extent = Extent.holding(1, len(request.decoder_ids), request.source_length)
        return self._footprint.bytes(1, extent)
