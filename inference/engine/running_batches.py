"""All running batches of one model, and the rows and bytes that they share.

Buffers are reserved for the maximal length of each sequence, so that it never runs out of them.
Blocks are not: when they run out, the youngest sequence is put back into the queue. It is admitted
again when there is room for its maximal length, and then keeps it: each is put back once at most
(D99).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

from inference.engine.runners.protocol import Runner
from inference.engine.running_batch import RunningBatch
from inference.engine.scheduler import Capacity
from inference.engine.search.request import EngineRequest
from inference.engine.sequence import SequenceState, longest
from inference.engine.state.group_state import BufferShape, MemoryModel
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
        self._blocks = runner.blocks
        self._admissions = 0

    def __iter__(self) -> Iterator[RunningBatch]:
        """A snapshot: batches may be reset or dropped during iteration."""
        return iter(list(self._by_width.values()))

    @property
    def rows(self) -> int:
        """Rows in use over all widths."""
        return sum(running.rows for running in self._by_width.values())

    @property
    def state_bytes(self) -> int:
        """Bytes of blocks, and of the arenas of batches with sequences."""
        blocks = 0 if self._blocks is None else self._blocks.used * self._blocks.block_bytes
        return blocks + sum(running.state_bytes for running in self if running.rows)

    @property
    def spare_bytes(self) -> int:
        """Bytes of the arenas that batches without sequences keep."""
        return sum(running.state_bytes for running in self if not running.rows)

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
        if self._blocks is not None:
            needed += self._final_blocks(request) * self._blocks.block_bytes
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
        buffers = self._needed_bytes(joining, width)
        if self._blocks is None:
            return buffers <= self._capacity.state_bytes
        return self._free_blocks(self._promised_blocks() + self._joining_blocks(joining), buffers)

    def make_room(self, running: RunningBatch) -> list[SequenceState]:
        """Makes sure that the next step of a batch finds its blocks.

        Returns:
            Sequences that were put back for it; they are in no batch any more.
        """
        put_back: list[SequenceState] = []
        if self._blocks is None:
            return put_back
        buffers = self._needed_bytes([], running.group.width)
        while not self._free_blocks(running.group.blocks_of_step, buffers):
            victim = self._youngest()
            if victim is None:
                break
            batch, sequence = victim
            batch.put_back(sequence)
            put_back.append(sequence)
        return put_back

    def reserve(self, joining: Sequence[SequenceState], waiting: int) -> RunningBatch:
        """The batch of the newcomers' width, created if needed, with memory reserved for them.

        Args:
            waiting: Sequences still in the queue.
        """
        width = joining[0].width
        for sequence in joining:
            self._admissions += 1
            sequence.admission = self._admissions
        if width not in self._by_width:
            self.drop_empty()
            self._by_width[width] = RunningBatch(
                self._runner, width, self._prefixes, self._capacity.draft_tokens
            )
        if self._blocks is not None:
            self.fits(joining)  # sets their limit: the last question may have been about more
        if self._reserved_bytes(joining, width) > self._capacity.state_bytes:
            self._shrink()
        running = self._by_width[width]
        running.reserve(joining, self._expected_sequences(running, joining, waiting))
        return running

    def drop_empty(self) -> None:
        """Frees the arenas of batches without sequences.

        They are kept for the next sequences until those are of another width.
        """
        for width, running in list(self._by_width.items()):
            if not running.rows:
                running.group.release()
                del self._by_width[width]

    @property
    def members(self) -> list[SequenceState]:
        """The sequences of all batches."""
        return [sequence for running in self for sequence in running.members]

    def clear(self) -> None:
        """Drops everything, also where something cannot be freed."""
        dropped = list(self)
        self._by_width.clear()
        with ExitStack() as freeing:
            for running in dropped:
                freeing.callback(running.group.release)
                for prefilling in list(running.prefilling):
                    freeing.callback(running.drop_prefill, prefilling)

    def _free_blocks(self, count: int, buffers: int) -> bool:
        """Whether so many blocks are free beside so many bytes of buffers.

        Cached prefixes give way, then buffers that are larger than that.
        """
        pool = self._blocks
        assert pool is not None
        pool.limit = max(0, self._capacity.state_bytes - buffers) // pool.block_bytes
        while pool.free < count:
            if self._prefixes is None or not self._prefixes.evict():
                return False
        held = sum(running.state_bytes for running in self)
        # drafts and a chunk of a prompt take further blocks before the next question
        beside = self.rows + pool.blocks_of(self._capacity.chunk_tokens) + 1
        blocks = (pool.used + count + beside) * pool.block_bytes
        if held > buffers and held + blocks > self._capacity.state_bytes:
            self._shrink()
        return True

    def _shrink(self) -> None:
        """Gives back memory that no sequence needs."""
        for running in self:
            running.shrink()

    def _joining_blocks(self, joining: Sequence[SequenceState]) -> int:
        """Blocks that newcomers must find; prompts with sources are padded to the longest one."""
        each = [self._first_blocks(sequence) for sequence in joining]
        has_sources = self._footprint != MemoryModel()
        return max(each) * len(each) if has_sources else sum(each)

    def _first_blocks(self, sequence: SequenceState) -> int:
        """Blocks that a newcomer must find: those of its prompt and of a step, or all of them."""
        assert self._blocks is not None
        if sequence.was_put_back:
            return self._final_blocks(sequence.request)
        return self._blocks.blocks_of(len(sequence.decoder_ids) + 1) + sequence.width - 1

    def _final_blocks(self, request: EngineRequest) -> int:
        """Blocks of a sequence at its maximal length."""
        assert self._blocks is not None
        return request.rules.rows * self._blocks.blocks_of(request.final_length)

    def _promised_blocks(self) -> int:
        """Blocks that sequences which were put back have yet to take."""
        assert self._blocks is not None
        promised = 0
        for sequence in self.members:
            if sequence.was_put_back:
                # rows that share blocks hold fewer than that: all are counted as yet to take
                is_single = sequence.width == 1
                held = self._blocks.blocks_of(len(sequence.decoder_ids)) if is_single else 0
                promised += self._final_blocks(sequence.request) - held
        return promised

    def _youngest(self) -> tuple[RunningBatch, SequenceState] | None:
        """The last admitted sequence that may be put back, and its batch."""
        found = [
            (running, sequence)
            for running in self
            for sequence in running.members
            if not sequence.was_put_back and not sequence.reads_given
        ]
        return max(found, key=lambda pair: pair[1].admission, default=None)

    def _expected_sequences(
        self, running: RunningBatch, joining: Sequence[SequenceState], waiting: int
    ) -> int:
        """Sequences likely to be in a batch soon, within rows and memory."""
        width = running.group.width
        reservation = running.reservation_with(joining)
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
        """Bytes that the arenas may grow to if no batch shrinks, and blocks for newcomers."""
        extents = {each: running.reservation for each, running in self._by_width.items()}
        running = self._by_width[width]
        extents[width] = running.reservation_with(joining)
        blocks = 0
        if self._blocks is not None:
            held = self._blocks.used + self._joining_blocks(joining)
            blocks = held * self._blocks.block_bytes
        return blocks + self._bytes(extents, joining)

    def _bytes(self, extents: dict[int, BufferShape], joining: Sequence[SequenceState]) -> int:
        total = sum(self._footprint.bytes(width, extent) for width, extent in extents.items())
        prefilling = [each.sequence for running in self for each in running.prefilling]
        if len(joining) == 1:
            prefilling += joining
        return total + sum(self._prefill_bytes(sequence.request) for sequence in prefilling)

    def _prefill_bytes(self, request: EngineRequest) -> int:
        """Bytes of a chunked prefill's own arenas, beside its slot."""
        if not self._runner.capabilities.takes_chunks:
            return 0
        extent = BufferShape.holding(1, len(request.decoder_ids), request.source_length)
        return self._footprint.bytes(1, extent)
