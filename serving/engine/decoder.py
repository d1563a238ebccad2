"""The loop's body, without a thread: schedule → run → choose → deliver.

A turn is a transaction: sequences join and leave only between turns, and what raises ends only
those whose state it touched. `decode` drives it to the end for callers that have no need of a
server, such as the exporter's verification.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from serving.engine.metrics import EngineMetrics
from serving.engine.request import Cancelled, EngineRequest, Event, Failed, Finished, TokenChunk
from serving.engine.runners.protocol import Runner
from serving.engine.running_batch import PrefillingSequence, RunningBatch, decoding_error
from serving.engine.running_batches import RunningBatches
from serving.engine.scheduler import Capacity, PromptBatch, Scheduler, StepBudget
from serving.engine.sequence import SequenceState
from serving.engine.state.prefix_cache import Block, PrefixCache
from serving.errors import InvalidRequest

log = logging.getLogger(__name__)


class Decoder:
    """All sequences of one model. Not thread-safe: one thread calls it."""

    def __init__(
        self,
        runner: Runner,
        capacity: Capacity,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.metrics = EngineMetrics(slots=capacity.rows, state_limit_bytes=capacity.state_bytes)
        self._runner = runner
        self._capacity = capacity
        self._scheduler = Scheduler(capacity, takes_chunks=runner.takes_chunks)
        self._prefixes: PrefixCache[Block] | None = None
        if runner.shares_prefixes and capacity.prefix_bytes:
            self._prefixes = PrefixCache(
                capacity.prefix_bytes, capacity.prefix_block_tokens, capacity.prefix_min_tokens
            )
        self._running_batches = RunningBatches(runner, capacity, self._prefixes)
        self._clock = clock
        self._admitting: list[
            SequenceState
        ] = []  # between queue and running_batch, so that none is lost

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not len(self._scheduler) and not self.rows_in_use

    @property
    def rows_in_use(self) -> int:
        """Live rows over all widths, those of prompts that are being read included."""
        return self._running_batches.rows

    @property
    def waiting(self) -> int:
        """Sequences without rows."""
        return len(self._scheduler)

    def check_fits(self, request: EngineRequest) -> None:
        """Says what could never run, not even alone. For any thread.

        Raises:
            InvalidRequest: it asks for more rows than there are.
            TooLong: its state would need more memory than there is.
        """
        self._running_batches.check_fits(request)

    def add(self, sequence: SequenceState) -> None:
        """Queues a sequence; what could never run is told so at once."""
        try:
            self._running_batches.check_fits(sequence.request)
        except InvalidRequest as error:
            sequence.emit(Failed(error))
            return
        self._scheduler.add(sequence, self._clock())

    def step(self) -> None:
        """Ends what must end, takes every running sequence one step, reads prompts."""
        started_s = self._clock()
        self._scheduler.abort_expired(started_s)
        for running_batch in self._running_batches:
            running_batch.abort_expired(started_s)
        is_decoding = self._decode_step()
        self._prefill_prompts(is_decoding)
        self._running_batches.drop_empty()
        self.metrics.steps += 1
        self.metrics.step_seconds += self._clock() - started_s
        self._update_gauges()

    def trim(self) -> None:
        """Gives back what is kept for speed alone."""
        self._runner.trim()
        self._update_gauges()

    def fail(self, error: Exception) -> None:
        """Ends every sequence with an error; the groups, whose state is suspect, go."""
        for sequence in (
            *self._running_batches.clear(),
            *self._admitting,
            *self._scheduler.clear(),
        ):
            sequence.emit(Failed(error))
        self._admitting = []
        if self._prefixes is not None:
            self._prefixes.clear()
        self._update_gauges()

    def _decode_step(self) -> bool:
        """Takes every running sequence one token further; False when there is none."""
        is_decoding = False
        for running_batch in self._running_batches:
            if not running_batch.sequences:
                continue
            is_decoding = True
            self.metrics.row_steps += len(running_batch.sequences) * running_batch.group.width
            try:
                running_batch.step()
            except Exception as error:  # one group's trouble is not another's
                self._fail(self._running_batches.lose(running_batch), error)
        return is_decoding

    def _prefill_prompts(self, is_decoding: bool) -> None:
        """Goes on with the long prompt, then takes in who waits, within the turn's budget."""
        capacity = self._capacity
        budget = capacity.prefill_tokens_beside if is_decoding else capacity.prefill_tokens
        left = budget
        for running_batch in self._running_batches:
            for prefilling in list(running_batch.prefilling):
                left -= self._prefill_chunk(running_batch, prefilling)
        while left > 0 and len(self._scheduler):
            batch = self._scheduler.next_batch(self._step_budget(left, is_fresh=left == budget))
            if batch is None:
                return
            left -= self._admit_batch(batch)

    def _step_budget(self, tokens: int, *, is_fresh: bool) -> StepBudget:
        return StepBudget(
            tokens=tokens,
            is_fresh=is_fresh,
            may_start_long=not any(
                running_batch.prefilling for running_batch in self._running_batches
            ),
            fits=self._running_batches.fit,
            stored=self._stored,
            opening=self._opening,
        )

    def _admit_batch(self, batch: PromptBatch) -> int:
        """Gives a batch its slots and reads its prompts, or a piece; returns tokens read."""
        self._admitting = batch.sequences
        running_batch = self._running_batches.of(batch.sequences, len(self._scheduler))
        read = batch.tokens
        if batch.is_alone:
            read = self._start_prefill(running_batch, batch.sequences[0])
        else:
            self._attempt(
                running_batch, batch.sequences, lambda: running_batch.admit(batch.sequences)
            )
            self.metrics.prefill_tokens += read
        self.metrics.admitted += len(batch.sequences)
        self._admitting = []
        return read

    def _start_prefill(self, running_batch: RunningBatch, sequence: SequenceState) -> int:
        """Begins with one prompt, from what is stored of it on; returns tokens read."""
        request = sequence.request
        blocks = self._prefixes.find(request.decoder_ids) if self._prefixes is not None else []
        started: list[PrefillingSequence] = []

        def begin() -> None:
            started.append(
                PrefillingSequence(sequence, self._runner.begin_prefill(request.prompt, blocks))
            )

        self._attempt(running_batch, [sequence], begin)
        if not started:
            return request.encoder_tokens
        running_batch.prefilling += started
        saved = len(request.decoder_ids) - started[0].prefill.remaining_tokens
        self.metrics.prefix_hits += bool(saved)
        self.metrics.prefix_tokens += saved
        self.metrics.prefill_tokens += request.encoder_tokens
        return request.encoder_tokens + self._prefill_chunk(running_batch, started[0])

    def _prefill_chunk(self, running_batch: RunningBatch, prefilling: PrefillingSequence) -> int:
        """Reads on in one prompt; returns tokens read."""
        size = min(prefilling.prefill.remaining_tokens, self._capacity.chunk_tokens)
        self._attempt(
            running_batch, [prefilling.sequence], lambda: running_batch.read(prefilling, size)
        )
        self.metrics.prefill_tokens += size
        return size

    def _attempt(
        self,
        running_batch: RunningBatch,
        sequences: list[SequenceState],
        action: Callable[[], object],
    ) -> None:
        """Does something for newcomers; what raises before they have slots ends only them."""
        try:
            action()
        except Exception as error:
            is_inside = any(sequence in running_batch.sequences for sequence in sequences)
            running_batch.prefilling = [
                e for e in running_batch.prefilling if e.sequence not in sequences
            ]
            self._fail(self._running_batches.lose(running_batch) if is_inside else sequences, error)

    def _fail(self, sequences: Iterable[SequenceState], error: Exception) -> None:
        log.error("decoding failed", exc_info=error)
        self.metrics.failures += 1
        for sequence in sequences:
            sequence.emit(Failed(decoding_error(error)))

    def _stored(self, sequence: SequenceState) -> int:
        if self._prefixes is None:
            return 0
        return self._prefixes.count(sequence.request.decoder_ids)

    def _opening(self, sequence: SequenceState) -> tuple[int, ...] | None:
        if self._prefixes is None:
            return None
        return self._prefixes.opening(sequence.request.decoder_ids)

    def _update_gauges(self) -> None:
        """Says how full the engine is."""
        metrics = self.metrics
        metrics.rows_in_use, metrics.waiting = self.rows_in_use, self.waiting
        metrics.state_bytes = self._running_batches.state_bytes
        metrics.spare_bytes = self._runner.spare_bytes
        metrics.bytes_per_slot = metrics.state_bytes // max(1, metrics.rows_in_use)
        metrics.prefix_bytes = self._prefixes.nbytes if self._prefixes is not None else 0


def decode(
    runner: Runner, requests: Iterable[EngineRequest], capacity: Capacity | None = None
) -> list[Finished]:
    """Answers to all requests, in order, decoded together as far as capacity allows.

    Raises:
        Exception: what the first request that failed was told.
    """
    decoder = Decoder(runner, capacity or Capacity())
    outcomes: list[list[Event]] = []
    for request in requests:
        outcomes.append([])
        decoder.add(SequenceState(request, outcomes[-1].append))
    while not decoder.is_idle:
        decoder.step()
    return [final_result(events) for events in outcomes]


def final_result(events: Iterable[Event]) -> Finished:
    """The final event, pieces skipped.

    Raises:
        Exception: what the request was told, if it failed.
    """
    final = next(event for event in events if not isinstance(event, TokenChunk))
    if isinstance(final, Failed):
        raise final.error
    assert not isinstance(final, Cancelled | TokenChunk), "nobody cancels here"
    return final
