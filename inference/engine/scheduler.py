"""Scheduling of waiting sequences by arrival and priority, within rows, bytes and prefill tokens.

Touches no tensor. A priority is a head start: a request with priority p is ordered as if it had
arrived p seconds earlier, so every request reaches the head in time and none starves. The head is
overtaken in one case: by short prompts, while another long prompt is in prefill.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field

from inference.engine.sequence import SequenceState

HEAD_START_S = 1.0  # per step of priority
_CALL_OVERHEAD_TOKENS = 24  # padding that costs as much as one more call (GPT-2 of 124M: 20)
_MAX_CALL_TOKENS = 512  # beyond, an operator's results leave the CPU caches before the next one


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
class StepBudget:
    """What remains of a turn for waiting sequences.

    Attributes:
        tokens: Prefill tokens left.
        is_fresh: Nothing was prefilled in this turn yet: the head may exceed the budget.
        may_start_long: No chunked prefill is under way.
        fits: Whether rows and memory suffice for these sequences beside all that run, at their
            maximal lengths.
        cached_tokens: Tokens of a sequence's prompt that are in the prefix cache.
        shareable_prefix: Prefix of a prompt that others could reuse once it is prefilled.
    """

    tokens: int
    is_fresh: bool
    may_start_long: bool
    fits: Callable[[list[SequenceState]], bool]
    cached_tokens: Callable[[SequenceState], int]
    shareable_prefix: Callable[[SequenceState], tuple[int, ...] | None]


@dataclass(frozen=True)
class PromptBatch:
    """Sequences of one width whose prompts are prefilled together.

    Attributes:
        tokens: Tokens of the call, padding included.
        is_chunked: One sequence that is prefilled in chunks, or behind a cached prefix.
    """

    sequences: list[SequenceState]
    tokens: int
    is_chunked: bool = False


@dataclass(order=True)
class _Place:
    """A place in the queue, in order."""

    since_s: float
    number: int
    sequence: SequenceState = field(compare=False)


class Scheduler:
    """The queue of sequences that wait for rows.

    Args:
        takes_chunks: Whether the model can prefill a prompt in chunks.
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

    def put_back(self, sequence: SequenceState) -> None:
        """Queues a sequence that has lost its memory before all others."""
        self._waiting.insert(0, _Place(-math.inf, -self._count, sequence))
        self._count += 1

    def abort_expired(self, now_s: float) -> None:
        """Ends waiting sequences that were cancelled or whose deadline has passed."""
        self._waiting = [p for p in self._waiting if not p.sequence.finish_if_due(now_s)]

    def next_batch(self, budget: StepBudget) -> PromptBatch | None:
        """Takes the sequences to prefill now; None while the head must wait."""
        for index, place in enumerate(self._waiting):
            head = place.sequence
            if self._is_long(head, budget) and not budget.may_start_long:
                continue
            batch = self._batch(index, budget)
            taken = {id(sequence) for sequence in batch.sequences} if batch else ()
            self._waiting = [p for p in self._waiting if id(p.sequence) not in taken]
            return batch
        return None

    def clear(self) -> list[SequenceState]:
        """Empties the queue; returns its sequences."""
        taken = [place.sequence for place in self._waiting]
        self._waiting.clear()
        return taken

    def _batch(self, index: int, budget: StepBudget) -> PromptBatch | None:
        """The sequence at that place, and later ones that are prefilled with it."""
        head = self._waiting[index].sequence
        if not budget.fits([head]):
            return None
        tokens = self._cost(head, budget)
        if tokens > budget.tokens and not budget.is_fresh:
            return None
        if self._runs_alone(head, budget):
            return PromptBatch([head], tokens, is_chunked=True)
        return self._with_companions(head, index, budget)

    def _with_companions(self, head: SequenceState, index: int, budget: StepBudget) -> PromptBatch:
        """Adds others of the head's width and similar length, within rows, memory and tokens.

        A prompt that shares its prefix with one of the batch waits, to reuse it from the cache.
        """
        batch, longest = [head], self._cost(head, budget)
        real = longest
        prefixes = {budget.shareable_prefix(head)} - {None}
        tokens = min(budget.tokens, _MAX_CALL_TOKENS)
        for place in self._waiting[index + 1 :]:
            other = place.sequence
            if other.width != head.width or self._runs_alone(other, budget):
                continue
            prefix = budget.shareable_prefix(other)
            if prefix in prefixes:
                continue
            cost = self._cost(other, budget)
            padded = max(longest, cost) * (len(batch) + 1)
            padding = padded - real - cost
            if padded > tokens or padding > max(_CALL_OVERHEAD_TOKENS, padded // 5):
                continue
            if not budget.fits([*batch, other]):
                break
            batch.append(other)
            longest, real = max(longest, cost), real + cost
            prefixes |= {prefix} - {None}
        return PromptBatch(batch, longest * len(batch))

    def _cost(self, sequence: SequenceState, budget: StepBudget) -> int:
        """Tokens to prefill in this turn."""
        cached = budget.cached_tokens(sequence)
        rest = len(sequence.decoder_ids) - cached
        if self._takes_chunks:
            whole = 0 if cached else sequence.whole_tokens
            rest = min(rest, max(whole, self._capacity.chunk_tokens))
        return sequence.request.encoder_tokens + rest

    def _runs_alone(self, sequence: SequenceState, budget: StepBudget) -> bool:
        if sequence.reads_given or sequence.is_resumed or budget.cached_tokens(sequence) > 0:
            return True
        return self._is_long(sequence, budget)

    def _is_long(self, sequence: SequenceState, budget: StepBudget) -> bool:
        """Whether the rest of the prompt takes more than one chunk."""
        rest = len(sequence.decoder_ids) - budget.cached_tokens(sequence)
        return self._takes_chunks and rest > self._capacity.chunk_tokens
