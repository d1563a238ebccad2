"""Who runs next: an order by arrival and priority, bounded by rows, bytes and prefill tokens.

Touches no tensor. A priority is a head start: a request with priority p stands where it would had
it come p seconds earlier, so that whoever waits long enough comes first and nothing starves. The
head of the queue is overtaken in one case only: by short prompts, while another long prompt is
being read, which ends.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field

from serving.engine.sequence import SequenceState

HEAD_START_S = 1.0  # of one step of priority
_CALL_TOKENS = 24  # a call more costs about as much as so much padding (GPT-2 of 124M: 20)
_CALL_AT_MOST = 512  # tokens: beyond, what one operator leaves for the next is out of the caches


@dataclass(frozen=True)
class Capacity:
    """What the engine holds at once.

    Attributes:
        rows: Live rows (sequences x beams) over all groups; who asks for more is refused.
        waiting: Accepted sequences without rows, among which priorities count. More are refused.
        prefill_tokens: Padded tokens that one turn reads while nothing is being decoded.
        prefill_tokens_beside: The same beside running streams, which wait for it. What cannot be
            read in chunks (a source, a picture) and is longer goes alone.
        chunk_tokens: Longer prompts are read in pieces of so many tokens, a piece a turn.
        state_bytes: What all arenas may hold, the store of prefixes apart.
        prefix_bytes: What the store of prefixes may hold; 0 for none.
        prefix_block_tokens: Granularity of what is stored.
        prefix_min_tokens: Shorter beginnings are read again: a call for the rest of one prompt
            costs as much as one for several whole prompts.
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

    def __post_init__(self) -> None:
        assert min(self.rows, self.waiting, self.state_bytes) >= 1
        assert 1 <= self.chunk_tokens <= self.prefill_tokens_beside <= self.prefill_tokens


@dataclass(frozen=True)
class StepBudget:
    """What a turn has left for sequences that wait.

    Attributes:
        tokens: Prefill tokens left.
        is_fresh: Nothing was read yet in this turn: the head may take more than its share.
        may_start_long: No long prompt is being read.
        fits: Whether rows and memory would do for these sequences and for those that run, however
            long they get.
        stored: Tokens of a sequence's prompt that need not be read again.
        opening: What a prompt shares with those that could profit from its being read first.
    """

    tokens: int
    is_fresh: bool
    may_start_long: bool
    fits: Callable[[list[SequenceState]], bool]
    stored: Callable[[SequenceState], int]
    opening: Callable[[SequenceState], tuple[int, ...] | None]


@dataclass(frozen=True)
class PromptBatch:
    """Sequences of one width whose prompts are read together.

    Attributes:
        tokens: What reading them costs, padding included.
        is_alone: One sequence that is read in chunks, or from a stored prefix on.
    """

    sequences: list[SequenceState]
    tokens: int
    is_alone: bool = False


@dataclass(order=True)
class _Place:
    """A place in the queue, in order."""

    since_s: float
    number: int
    sequence: SequenceState = field(compare=False)


class Scheduler:
    """Sequences that wait for rows.

    Args:
        takes_chunks: Whether the model can read a prompt in pieces.
    """

    def __init__(self, capacity: Capacity, *, takes_chunks: bool = False) -> None:
        self._capacity = capacity
        self._takes_chunks = takes_chunks
        self._waiting: list[_Place] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, sequence: SequenceState, now_s: float) -> None:
        """Queues a sequence."""
        since_s = now_s - HEAD_START_S * sequence.request.priority
        insort(self._waiting, _Place(since_s, self._count, sequence))
        self._count += 1

    def abort_expired(self, now_s: float) -> None:
        """Ends waiting sequences that were cancelled or whose time is up."""
        self._waiting = [p for p in self._waiting if not p.sequence.finish_if_due(now_s)]

    def next_batch(self, room: StepBudget) -> PromptBatch | None:
        """Takes the sequences to read now; None while the head must wait."""
        for index, place in enumerate(self._waiting):
            head = place.sequence
            if self._is_long(head, room) and not room.may_start_long:
                continue
            batch = self._batch(index, room)
            taken = {id(sequence) for sequence in batch.sequences} if batch else ()
            self._waiting = [p for p in self._waiting if id(p.sequence) not in taken]
            return batch
        return None

    def clear(self) -> list[SequenceState]:
        """Takes everything that waits."""
        taken = [place.sequence for place in self._waiting]
        self._waiting.clear()
        return taken

    def _batch(self, index: int, room: StepBudget) -> PromptBatch | None:
        """The sequence at that place and those behind it that come along."""
        head = self._waiting[index].sequence
        if not room.fits([head]):
            return None
        tokens = self._cost(head, room)
        if tokens > room.tokens and not room.is_fresh:
            return None
        if self._goes_alone(head, room):
            return PromptBatch([head], tokens, is_alone=True)
        return self._with_companions(head, index, room)

    def _with_companions(self, head: SequenceState, index: int, room: StepBudget) -> PromptBatch:
        """Others of the head's width and about its length, as far as rows, memory and tokens go.

        Who shares the head's opening waits for it to be read, and profits.
        """
        batch, longest = [head], self._cost(head, room)
        real = longest
        openings = {room.opening(head)} - {None}
        tokens = min(room.tokens, _CALL_AT_MOST)
        for place in self._waiting[index + 1 :]:
            other = place.sequence
            if other.width != head.width or self._goes_alone(other, room):
                continue
            opening = room.opening(other)
            if opening in openings:
                continue
            cost = self._cost(other, room)
            padded = max(longest, cost) * (len(batch) + 1)
            if padded > tokens or padded - real - cost > max(_CALL_TOKENS, padded // 5):
                continue
            if not room.fits([*batch, other]):
                break
            batch.append(other)
            longest, real = max(longest, cost), real + cost
            openings |= {opening} - {None}
        return PromptBatch(batch, longest * len(batch))

    def _cost(self, sequence: SequenceState, room: StepBudget) -> int:
        """Tokens to read in this turn."""
        request = sequence.request
        rest = len(request.decoder_ids) - room.stored(sequence)
        if self._takes_chunks:
            rest = min(rest, self._capacity.chunk_tokens)
        return request.encoder_tokens + rest

    def _goes_alone(self, sequence: SequenceState, room: StepBudget) -> bool:
        return room.stored(sequence) > 0 or self._is_long(sequence, room)

    def _is_long(self, sequence: SequenceState, room: StepBudget) -> bool:
        """Whether the rest of the prompt is read in more than one piece."""
        rest = len(sequence.request.decoder_ids) - room.stored(sequence)
        return self._takes_chunks and rest > self._capacity.chunk_tokens
