"""The loop's body, without a thread: schedule, run the model, choose tokens, deliver.

A turn is a transaction: sequences join and end only between turns, and an exception ends only the
sequences whose state it touched. `decode` drives it to the end for callers without a server, such
as the exporter's verification.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from inference.engine.metrics import EngineMetrics
from inference.engine.runners.protocol import Runner
from inference.engine.running_batch import RunningBatch
from inference.engine.scheduler import Capacity, PromptBatch, Scheduler
from inference.engine.search.request import Cancelled, EngineRequest, Event, Failed
from inference.engine.sequence import PrefillingSequence, SequenceState
from inference.model_errors import hide_cause
from inference.sequences import Finished, TokenChunk


class EngineCore:
    """All sequences of one model. Not thread-safe: one thread calls it."""

    def __init__(
        self,
        runner: Runner,
        capacity: Capacity,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.metrics = EngineMetrics(slots=capacity.rows, state_limit_bytes=capacity.state_bytes)
        self._runner, self._capacity, self._clock = runner, capacity, clock
        self._scheduler = Scheduler(runner, capacity)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self.waiting and not self.rows_in_use

    @property
    def rows_in_use(self) -> int:
        """Live rows over all widths, those of prompts in prefill included."""
        return self._scheduler.rows

    @property
    def waiting(self) -> int:
        """Sequences without rows."""
        return self._scheduler.waiting

    def check_fits(self, request: EngineRequest) -> None:
        """Refuses what could never run, not even alone. Thread-safe.

        Raises:
            InvalidRequest: more rows than the engine has.
            TooLong: its state needs more memory than the engine has.
        """
        self._scheduler.check_fits(request)

    def add(self, sequence: SequenceState) -> None:
        """Queues a sequence whose request `check_fits` accepts."""
        if not sequence.finish_if_complete():
            sequence.adapt_to(self._runner.capabilities)
            self._scheduler.add(sequence, self._clock())

    def step(self) -> None:
        """One turn: ends expired sequences, takes one decode step, prefills prompts."""
        started_s = self._clock()
        self._scheduler.abort_expired(started_s)
        is_decoding, prefilled = self._decode_step()
        self._prefill_prompts(is_decoding, prefilled)
        if self._runner.capabilities.keeps_buffers:
            self._scheduler.drop_empty()
        self.metrics.steps += 1
        self.metrics.step_seconds += self._clock() - started_s
        self._update_gauges()

    def release(self) -> None:
        """Gives buffers that no sequence needs back to the runner."""
        self._scheduler.drop_empty()

    def trim(self) -> None:
        """Frees memory kept for speed alone."""
        self.release()
        self._runner.trim()
        self._update_gauges()

    def fail(self, error: Exception) -> None:
        """Ends every sequence with an error and drops all groups, whose state is suspect."""
        for sequence in self._scheduler.sequences:
            sequence.emit(Failed(error))
        try:
            self._scheduler.clear()
        finally:
            self._update_gauges()

    def _decode_step(self) -> tuple[bool, int]:
        """Takes every running sequence a step further, a chunk of a prompt beside them.

        Several steps are taken in one call only while nothing waits for rows.

        Returns:
            Whether there was a running sequence, and tokens of the chunk.
        """
        is_decoding, is_alone, prefilled = False, not self.waiting, 0
        chunk = self._capacity.chunk_tokens
        for running in self._scheduler.running:
            self.metrics.put_back += self._scheduler.make_room(running)
            if not running.sequences:
                continue
            is_decoding = True
            try:
                done = running.step(is_alone=is_alone, chunk_tokens=chunk)
                self.metrics.count(done)
                prefilled += done.prefilled
            except Exception as error:  # one group's failure leaves the others alone
                self._fail(running.sequences, error)
                running.restart()
        return is_decoding, prefilled

    def _prefill_prompts(self, is_decoding: bool, prefilled: int = 0) -> None:
        """Continues the chunked prefill, then admits waiting sequences, within the budget.

        Args:
            prefilled: Tokens of its next chunk, where the decode step took that along.
        """
        capacity = self._capacity
        budget = capacity.prefill_tokens_beside if is_decoding else capacity.prefill_tokens
        left = budget - prefilled
        for running in self._scheduler.running if not prefilled else ():
            for prefilling in list(running.prefilling):
                left -= self._prefill_chunk(running, prefilling)
        while left > 0 and self.waiting:
            batch = self._scheduler.next_batch(left, is_fresh=left == budget)
            if batch is None:
                return
            left -= self._admit(batch)

    def _admit(self, batch: PromptBatch) -> int:
        """Prefills the prompts of a batch, or a chunk of one; returns tokens."""
        running, sequences, tokens = batch.running, batch.sequences, batch.tokens
        if batch.is_chunked:
            tokens = self._begin_prefill(running, sequences[0])
        else:
            self._attempt(running, sequences, lambda: running.admit(sequences))
            self.metrics.prefill_tokens += tokens
        self.metrics.admitted += len(sequences)
        return tokens

    def _begin_prefill(self, running: RunningBatch, sequence: SequenceState) -> int:
        """Starts the prefill of one prompt behind its cached prefix; returns tokens."""
        request = sequence.request
        cached = self._scheduler.find_prefix(sequence)
        if not self._attempt(running, [sequence], lambda: running.begin_prefill(sequence, cached)):
            return request.encoder_tokens
        started = running.prefilling[-1]
        self.metrics.prefix_hits += bool(cached.tokens)
        self.metrics.prefix_tokens += cached.tokens
        self.metrics.prefill_tokens += request.encoder_tokens
        is_long = started.prefill.remaining_tokens > self._capacity.chunk_tokens
        if is_long and running.takes_along(started):
            return request.encoder_tokens  # streams would wait for two chunks between two tokens
        return request.encoder_tokens + self._prefill_chunk(running, started)

    def _prefill_chunk(self, running: RunningBatch, prefilling: PrefillingSequence) -> int:
        """Prefills the next chunk of one prompt; returns tokens."""
        size = prefilling.next_chunk(self._capacity.chunk_tokens)
        self._attempt(running, [prefilling.sequence], lambda: running.prefill(prefilling, size))
        self.metrics.prefill_tokens += size
        return size

    def _attempt(
        self, running: RunningBatch, sequences: list[SequenceState], action: Callable[[], None]
    ) -> bool:
        """Runs an action for newcomers; an exception before they have slots ends only them.

        Returns:
            Whether there was none.
        """
        try:
            action()
            return True
        except Exception as error:
            has_slot = any(sequence in running.sequences for sequence in sequences)
            ended = running.sequences if has_slot else sequences
            self._fail(ended, error)  # before what is freed, which may raise, too
            for prefilling in [e for e in running.prefilling if e.sequence in sequences]:
                running.drop_prefill(prefilling)
            if has_slot:
                running.restart()
            return False

    def _fail(self, sequences: Iterable[SequenceState], error: Exception) -> None:
        self.metrics.failures += 1
        reported = hide_cause(error, "decoding failed")
        for sequence in sequences:
            sequence.emit(Failed(reported))

    def _update_gauges(self) -> None:
        metrics = self.metrics
        metrics.rows_in_use, metrics.waiting = self.rows_in_use, self.waiting
        scheduler = self._scheduler
        metrics.state_bytes = scheduler.state_bytes
        metrics.spare_bytes = self._runner.spare_bytes + scheduler.spare_bytes
        metrics.bytes_per_slot = metrics.state_bytes // max(1, metrics.rows_in_use)
        metrics.prefix_bytes = scheduler.prefix_bytes


def decode(
    runner: Runner, requests: Iterable[EngineRequest], capacity: Capacity | None = None
) -> list[Finished]:
    """Results of all requests, in order, decoded together as far as capacity allows.

    Raises:
        Exception: the error of the first request that could never run, or failed.
    """
    decoder = EngineCore(runner, capacity or Capacity())
    outcomes: list[list[Event]] = []
    for request in requests:
        decoder.check_fits(request)
        outcomes.append([])
        decoder.add(SequenceState(request, outcomes[-1].append))
    while not decoder.is_idle:
        decoder.step()
    decoder.release()
    return [final_result(events) for events in outcomes]


def final_result(events: Iterable[Event]) -> Finished:
    """The last event of a request that was not cancelled.

    Raises:
        Exception: the request's error, if it failed.
    """
    final = next(event for event in events if not isinstance(event, TokenChunk))
    if isinstance(final, Failed):
        raise final.error
    assert not isinstance(final, Cancelled | TokenChunk), "this request cannot be cancelled"
    return final
