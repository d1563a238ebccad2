"""The sequences of one model: which wait for rows, which run, and whether memory holds them.

Waiting sequences are admitted by arrival and priority, within rows, bytes and prefill tokens. A
priority is a head start: a request with priority p is ordered as if it had arrived p seconds
earlier, so every request reaches the head in time and none starves. The head is overtaken in one
case: by short prompts, while another long prompt is in prefill.

Buffers are reserved for the maximal length of each sequence, so that it never runs out of them.
Blocks are not: when they run out, the youngest sequence is put back into the queue. It is admitted
again when there is room for its maximal length, and then keeps it: each is put back once at most
(D99).
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from inference.engine.request import EngineRequest
from inference.engine.runners.protocol import Runner
from inference.engine.running_batch import RunningBatch
from inference.engine.sequence import SequenceState, longest
from inference.engine.state.group_state import BufferShape, MemoryModel
from inference.engine.state.prefix_cache import Block, CachedPrefix, PrefixCache
from inference.errors import InvalidRequest, TooLong

HEAD_START_S = 1.0  # per step of priority
_CALL_OVERHEAD_TOKENS = 24  # padding that costs as much as one more call (GPT-2 of 124M: 20)
_MAX_CALL_TOKENS = 512  # beyond, an operator's results leave the CPU caches before the next one
_MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Capacity:
    """Limits of an engine.

    Attributes:
        rows: Live rows (sequences x beams) over all groups; wider requests are refused.
        waiting: Accepted sequences without rows, ordered by priority. Further ones are refused.
        prefill_tokens: Padded tokens that one turn prefills while nothing is decoded.
        prefill_tokens_beside: The same beside running sequences, which wait for it. A longer
            prefill that cannot be chunked (a source, an image) runs alone.
        chunk_tokens: Longer prompts are prefilled in chunks of this size, one per turn.
        state_bytes: Bound on the bytes of all arenas; the prefix cache is apart.
        prefix_bytes: Bound on the bytes of the prefix cache; 0 disables it.
        prefix_block_tokens: Granularity of the prefix cache.
        prefix_min_tokens: Shorter prefixes are prefilled again: a call for the rest of one prompt
            costs as much as one for several whole prompts.
        draft_tokens: Tokens found by prompt lookup that a step verifies for each sequence at most,
            where the runner can and it pays (D100); 0 disables it.
    """

    rows: int = 64
    waiting: int = 128
    prefill_tokens: int = 2048
    prefill_tokens_beside: int = 256
    chunk_tokens: int = 128
    state_bytes: int = 2 << 30
    prefix_bytes: int = 256 << 20
    prefix_block_tokens: int = 16
    prefix_min_tokens: int = 48
    draft_tokens: int = 8

    def __post_init__(self) -> None:
        assert min(self.rows, self.waiting, self.state_bytes) >= 1
        assert 1 <= self.chunk_tokens <= self.prefill_tokens_beside <= self.prefill_tokens


@dataclass(frozen=True)
class PromptBatch:
    """Sequences of one width whose prompts are prefilled together.

    Attributes:
        sequences: They have left the queue.
        tokens: Tokens of the call, padding included.
        running: The batch that they join, with memory reserved for them.
        is_chunked: One sequence that is prefilled in chunks, or behind a cached prefix.
    """

    sequences: list[SequenceState]
    tokens: int
    running: RunningBatch
    is_chunked: bool


@dataclass(order=True)
class _Place:
    """A place in the queue, in order."""

    since_s: float
    number: int
    sequence: SequenceState = field(compare=False)


class Scheduler:
    """The queue, and one running batch for each width in use. Touches no tensor."""

    def __init__(self, runner: Runner, capacity: Capacity) -> None:
        can = runner.capabilities
        self._runner, self._capacity = runner, capacity
        self._blocks, self._footprint = runner.blocks, runner.footprint
        self._takes_chunks = can.takes_chunks and not can.reads_whole_prompts
        self._prefixes: PrefixCache[Block] | None = None
        if can.shares_prefixes and capacity.prefix_bytes:
            block = capacity.prefix_block_tokens
            if self._blocks is not None:
                block = self._blocks.block_tokens
            self._prefixes = PrefixCache(capacity.prefix_bytes, block, capacity.prefix_min_tokens)
        self._waiting: list[_Place] = []
        self._by_width: dict[int, RunningBatch] = {}
        self._added = self._admitted = 0

    @property
    def waiting(self) -> int:
        """Sequences in the queue."""
        return len(self._waiting)

    @property
    def running(self) -> list[RunningBatch]:
        """A snapshot: batches may be reset or dropped during iteration."""
        return list(self._by_width.values())

    @property
    def rows(self) -> int:
        """Rows in use over all widths."""
        return sum(running.rows for running in self._by_width.values())

    @property
    def sequences(self) -> list[SequenceState]:
        """Those that run, then those that wait."""
        running = [sequence for each in self.running for sequence in each.members]
        return [*running, *(place.sequence for place in self._waiting)]

    @property
    def state_bytes(self) -> int:
        """Bytes of blocks, and of the arenas of batches with sequences."""
        blocks = 0 if self._blocks is None else self._blocks.used * self._blocks.block_bytes
        return blocks + sum(running.state_bytes for running in self.running if running.rows)

    @property
    def spare_bytes(self) -> int:
        """Bytes of the arenas that batches without sequences keep."""
        return sum(running.state_bytes for running in self.running if not running.rows)

    @property
    def prefix_bytes(self) -> int:
        """Bytes of the prefix cache."""
        return 0 if self._prefixes is None else self._prefixes.nbytes

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

    def add(self, sequence: SequenceState, now_s: float) -> None:
        """Queues a sequence."""
        since_s = now_s - HEAD_START_S * sequence.request.priority
        insort(self._waiting, _Place(since_s, self._added, sequence))
        self._added += 1

    def abort_expired(self, now_s: float) -> None:
        """Ends sequences that were cancelled or whose deadline has passed."""
        self._waiting = [p for p in self._waiting if not p.sequence.finish_if_due(now_s)]
        for running in self.running:
            running.abort_expired(now_s)

    def make_room(self, running: RunningBatch) -> int:
        """Makes sure that the next step of a batch finds its blocks.

        Returns:
            How many sequences were put back for it, before all others in the queue.
        """
        if self._blocks is None:
            return 0
        count, buffers = 0, self._needed_bytes()
        while not self._free_blocks(running.group.blocks_of_step, buffers):
            victim = self._youngest()
            if victim is None:
                break
            batch, sequence = victim
            batch.put_back(sequence)
            self._waiting.insert(0, _Place(-math.inf, -self._added, sequence))
            self._added += 1
            count += 1
        return count

    def next_batch(self, tokens: int, *, is_fresh: bool) -> PromptBatch | None:
        """Takes the sequences to prefill now; None while the head must wait.

        Args:
            tokens: Prefill tokens left in this turn.
            is_fresh: Nothing was prefilled in this turn yet: the head may exceed them.
        """
        may_start_long = not any(running.prefilling for running in self.running)
        for index, place in enumerate(self._waiting):
            if may_start_long or not self._is_long(place.sequence):
                return self._batch(index, tokens, is_fresh=is_fresh)
        return None

    def find_prefix(self, sequence: SequenceState) -> CachedPrefix[Block]:
        """What the prefix cache has of a sequence's prompt."""
        if self._prefixes is None or not self._cached_tokens(sequence):
            return CachedPrefix()
        return self._prefixes.find(sequence.cacheable_ids)

    def drop_empty(self) -> None:
        """Frees the arenas of batches without sequences.

        They are kept for the next sequences until those are of another width.
        """
        for width, running in list(self._by_width.items()):
            if not running.rows:
                running.group.release()
                del self._by_width[width]

    def clear(self) -> None:
        """Drops everything, also where something cannot be freed."""
        dropped = self.running
        self._waiting.clear()
        self._by_width.clear()
        with ExitStack() as freeing:
            if self._prefixes is not None:
                freeing.callback(self._prefixes.clear)
            for running in dropped:
                freeing.callback(running.group.release)
                for prefilling in list(running.prefilling):
                    freeing.callback(running.drop_prefill, prefilling)

    def _batch(self, index: int, tokens: int, *, is_fresh: bool) -> PromptBatch | None:
        """The sequence at that place, and later ones that are prefilled with it."""
        head = self._waiting[index].sequence
        if not self._fits([head]):  # which may take cached prefixes away
            return None
        cost = self._cost(head)
        if cost > tokens and not is_fresh:
            return None
        batch, is_chunked = [head], self._runs_alone(head)
        if not is_chunked:
            batch, cost = self._with_companions(head, index, tokens)
        running = self._reserve(batch)  # where that fails, they are in the queue
        taken = set(map(id, batch))
        self._waiting = [p for p in self._waiting if id(p.sequence) not in taken]
        return PromptBatch(batch, cost, running, is_chunked)

    def _with_companions(
        self, head: SequenceState, index: int, tokens: int
    ) -> tuple[list[SequenceState], int]:
        """Adds others of the head's width and similar length, within rows, memory and tokens.

        A prompt that shares its prefix with one of the batch waits, to reuse it from the cache.

        Returns:
            The batch, and the tokens of its call.
        """
        batch, most = [head], self._cost(head)
        real = most
        prefixes = {self._shareable_prefix(head)} - {None}
        tokens = min(tokens, _MAX_CALL_TOKENS)
        for place in self._waiting[index + 1 :]:
            other = place.sequence
            if other.width != head.width or self._runs_alone(other):
                continue
            prefix = self._shareable_prefix(other)
            if prefix in prefixes:
                continue
            cost = self._cost(other)
            padded = max(most, cost) * (len(batch) + 1)
            padding = padded - real - cost
            if padded > tokens or padding > max(_CALL_OVERHEAD_TOKENS, padded // 5):
                continue
            if not self._fits([*batch, other]):
                break
            batch.append(other)
            most, real = max(most, cost), real + cost
            prefixes |= {prefix} - {None}
        return batch, most * len(batch)

    def _cost(self, sequence: SequenceState) -> int:
        """Tokens to prefill in this turn."""
        cached = self._cached_tokens(sequence)
        rest = len(sequence.decoder_ids) - cached
        if self._takes_chunks:
            whole = 0 if cached else sequence.whole_tokens
            rest = min(rest, max(whole, self._capacity.chunk_tokens))
        return sequence.request.encoder_tokens + rest

    def _runs_alone(self, sequence: SequenceState) -> bool:
        if sequence.reads_given or sequence.is_resumed or self._cached_tokens(sequence) > 0:
            return True
        return self._is_long(sequence)

    def _is_long(self, sequence: SequenceState) -> bool:
        """Whether the rest of the prompt takes more than one chunk."""
        rest = len(sequence.decoder_ids) - self._cached_tokens(sequence)
        return self._takes_chunks and rest > self._capacity.chunk_tokens

    def _cached_tokens(self, sequence: SequenceState) -> int:
        """Tokens of a sequence's prompt that are in the prefix cache, and may come from there."""
        if self._prefixes is None:
            return 0
        tokens = self._prefixes.cached_tokens(sequence.cacheable_ids)
        return tokens if tokens >= sequence.whole_tokens else 0

    def _shareable_prefix(self, sequence: SequenceState) -> tuple[int, ...] | None:
        """Prefix of a prompt that others could reuse once it is prefilled."""
        if self._prefixes is None:
            return None
        return self._prefixes.shareable_prefix(sequence.prefix_ids)

    def _fits(self, joining: Sequence[SequenceState]) -> bool:
        """Whether rows and memory suffice for newcomers of one width beside all that run."""
        if self.rows + len(joining) * joining[0].width > self._capacity.rows:
            return False
        buffers = self._needed_bytes(joining)
        if self._blocks is None:
            return buffers <= self._capacity.state_bytes
        return self._free_blocks(self._promised_blocks() + self._joining_blocks(joining), buffers)

    def _reserve(self, joining: Sequence[SequenceState]) -> RunningBatch:
        """The batch of the newcomers' width, created if needed, with memory reserved for them."""
        width = joining[0].width
        for sequence in joining:
            self._admitted += 1
            sequence.admission = self._admitted
        if width not in self._by_width:
            self.drop_empty()
            self._by_width[width] = RunningBatch(
                self._runner, width, self._prefixes, self._capacity.draft_tokens
            )
        if self._blocks is not None:
            self._fits(joining)  # sets their limit: the last question may have been about more
        if self._reserved_bytes(joining) > self._capacity.state_bytes:
            self._shrink()
        running = self._by_width[width]
        running.reserve(joining, self._expected_sequences(running, joining))
        return running

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
        held = sum(running.state_bytes for running in self.running)
        # drafts and a chunk of a prompt take further blocks before the next question
        beside = self.rows + pool.blocks_of(self._capacity.chunk_tokens) + 1
        blocks = (pool.used + count + beside) * pool.block_bytes
        if held > buffers and held + blocks > self._capacity.state_bytes:
            self._shrink()
        return True

    def _shrink(self) -> None:
        """Gives back memory that no sequence needs."""
        for running in self.running:
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
        for sequence in (each for running in self.running for each in running.members):
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
            for running in self.running
            for sequence in running.members
            if not sequence.was_put_back and not sequence.reads_given
        ]
        return max(found, key=lambda pair: pair[1].admission, default=None)

    def _expected_sequences(self, running: RunningBatch, joining: Sequence[SequenceState]) -> int:
        """Sequences likely to be in a batch soon, within rows and memory."""
        width = running.group.width
        reservation = running.reservation_with(joining)
        each = self._footprint.bytes(width, replace(reservation, sequences=1))
        return min(
            len(running.members) + self.waiting,  # newcomers are among these
            self._capacity.rows // width,
            self._capacity.state_bytes // max(1, each),
        )

    def _needed_bytes(self, joining: Sequence[SequenceState] = ()) -> int:
        """Bytes needed once every batch has shrunk, a single newcomer's prefill included."""
        extents = {each: running.needs() for each, running in self._by_width.items()}
        if joining:
            running = self._by_width.get(joining[0].width)
            extents[joining[0].width] = running.needs(joining) if running else longest(joining)
        return self._bytes(extents, joining)

    def _reserved_bytes(self, joining: Sequence[SequenceState]) -> int:
        """Bytes that the arenas may grow to if no batch shrinks, and blocks for newcomers."""
        extents = {each: running.reservation for each, running in self._by_width.items()}
        width = joining[0].width
        extents[width] = self._by_width[width].reservation_with(joining)
        blocks = 0
        if self._blocks is not None:
            held = self._blocks.used + self._joining_blocks(joining)
            blocks = held * self._blocks.block_bytes
        return blocks + self._bytes(extents, joining)

    def _bytes(self, extents: dict[int, BufferShape], joining: Sequence[SequenceState]) -> int:
        total = sum(self._footprint.bytes(width, extent) for width, extent in extents.items())
        prefilling = [each.sequence for running in self.running for each in running.prefilling]
        if len(joining) == 1:
            prefilling += joining
        return total + sum(self._prefill_bytes(sequence.request) for sequence in prefilling)

    def _prefill_bytes(self, request: EngineRequest) -> int:
        """Bytes of a chunked prefill's own arenas, beside its slot."""
        if not self._runner.capabilities.takes_chunks:
            return 0
        extent = BufferShape.holding(1, len(request.decoder_ids), request.source_length)
        return self._footprint.bytes(1, extent)
