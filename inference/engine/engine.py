"""The engine: one thread that owns all sequences of a model, and the thread-safe submission API.

A turn is a transaction: sequences join and end only between turns, and an exception ends only the
sequences whose state it touched. `decode` drives it to the end for callers without a server, such
as the exporter's verification.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from inference.engine.request import (
    Cancelled,
    EngineRequest,
    Event,
    Failed,
    Listener,
    RequestValidator,
)
from inference.engine.runners.protocol import Runner
from inference.engine.running_batch import RunningBatch, StepCounts
from inference.engine.scheduler import Capacity, PromptBatch, Scheduler
from inference.engine.sequence import PrefillingSequence, SequenceState
from inference.errors import Overloaded, ServingError, Unavailable
from inference.generation import Finished, TokenChunk
from inference.model_errors import hide_cause


@dataclass
class EngineMetrics:
    """Written by the engine's thread, read by any; each field is one number, so no lock.

    Attributes:
        steps: Turns of the loop: the heartbeat.
        step_seconds: Time spent in them.
        admitted: Sequences whose prefill has begun.
        row_steps: Tokens decoded over all rows, without prefill.
        draft_tokens: Tokens that prompt lookup found and a step verified.
        accepted_tokens: Those of them that were right.
        prefill_tokens: Tokens of sources, images and prompts prefilled, padding included.
        prefix_hits: Prompts with a prefix in the prefix cache.
        prefix_tokens: Prompt tokens taken from the prefix cache.
        slots: Rows that may live at once.
        rows_in_use: Live rows now, those of prompts in prefill included.
        waiting: Accepted sequences without rows now.
        state_bytes: Bytes of blocks, and of buffers of batches with sequences, now.
        state_limit_bytes: Their limit.
        spare_bytes: Bytes of released buffers, and of batches without sequences, kept for reuse.
        bytes_per_slot: `state_bytes` per live row; 0 when idle.
        prefix_bytes: Bytes of the prefix cache now.
        put_back: Sequences that lost their memory to older ones and were prefilled again.
        failures: Groups and prompts that failed with an exception.
    """

    steps: int = 0
    step_seconds: float = 0.0
    admitted: int = 0
    row_steps: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    prefill_tokens: int = 0
    prefix_hits: int = 0
    prefix_tokens: int = 0
    slots: int = 0
    rows_in_use: int = 0
    waiting: int = 0
    state_bytes: int = 0
    state_limit_bytes: int = 0
    spare_bytes: int = 0
    bytes_per_slot: int = 0
    prefix_bytes: int = 0
    put_back: int = 0
    failures: int = 0

    def count(self, done: StepCounts) -> None:
        """Adds what a call did."""
        self.row_steps += done.tokens
        self.draft_tokens += done.drafted
        self.accepted_tokens += done.accepted
        self.prefill_tokens += done.prefilled


class EngineCore:
    """All sequences of one model. Not thread-safe: one thread calls it."""

    def __init__(
        self, runner: Runner, capacity: Capacity, clock: Callable[[], float] = time.monotonic
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


log = logging.getLogger(__name__)

TRIM_AFTER_S = 10.0


class Engine:
    """Continuous batching over one runner. All methods may be called from any thread.

    Args:
        runner: Owned by the engine, closed by `close`.
        validator: Checks each request before it may share a batch.
        capacity: Limits of the engine.
        trim_after_s: Idle time after which memory kept for speed alone is freed.
    """

    def __init__(
        self,
        runner: Runner,
        validator: RequestValidator,
        capacity: Capacity | None = None,
        trim_after_s: float = TRIM_AFTER_S,
    ) -> None:
        self._runner = runner
        self._validator = validator
        self._capacity = capacity or Capacity()
        self._decoder = EngineCore(runner, self._capacity)
        self._inbox: deque[SequenceState] = deque()
        self._rest_after_s = trim_after_s
        self._is_closed = False
        self._is_asleep = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
        self._thread.start()

    @property
    def metrics(self) -> EngineMetrics:
        """Counters; read only."""
        return self._decoder.metrics

    @property
    def is_asleep(self) -> bool:
        """Whether its thread waits for work, so that no heartbeat is due."""
        return self._is_asleep and self._thread.is_alive()

    def submit(self, request: EngineRequest, listener: Listener) -> SequenceState:
        """Accepts a request; its listener is called from the engine's thread.

        Returns:
            A handle with `cancel()`.

        Raises:
            InvalidRequest: the model cannot serve it.
            Overloaded: the queue is full.
            Unavailable: the engine is closed.
        """
        accepted = self._validator.validate(request)
        self._decoder.check_fits(accepted)
        sequence = SequenceState(accepted, listener)
        with self._changed:
            if self._is_closed:
                raise Unavailable("the engine is closed")
            if self._waiting >= self._capacity.waiting:
                raise Overloaded(f"{self._waiting} requests are waiting", retry_after_s=1)
            self._inbox.append(sequence)
            self._changed.notify_all()
        return sequence

    def wait_for_capacity(self, timeout_s: float | None = None) -> bool:
        """Blocks until the queue has a free place, or the engine is closed.

        Returns:
            Whether a place is free; another thread may take it first.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._has_capacity or self._is_closed, timeout_s)
            return self._has_capacity and not self._is_closed

    def generate(self, request: EngineRequest) -> Finished:
        """The result of one request; blocks, also while the queue is full.

        Raises:
            ServingError: the request's error.
        """
        done = threading.Event()
        events: list[Event] = []

        def listen(event: Event) -> None:
            events.append(event)
            if not isinstance(event, TokenChunk):
                done.set()

        self.wait_for_capacity()
        self.submit(request, listen)
        done.wait()
        return final_result(events)

    def close(self) -> None:
        """Ends every request with `Unavailable`, stops the thread, frees the model."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()
        self._runner.close()

    @property
    def _waiting(self) -> int:
        """Sequences accepted and without rows."""
        return self._decoder.waiting + len(self._inbox)

    @property
    def _has_capacity(self) -> bool:
        return self._waiting < self._capacity.waiting

    def _loop(self) -> None:
        """The engine's thread, which no exception ends."""
        is_open = True
        while is_open:
            try:
                is_open = self._take_inbox()
                if is_open:
                    self._decoder.step()
            except Exception as error:
                self._decoder.metrics.failures += 1
                self._fail(hide_cause(error, "an engine's turn failed"))
        self._fail(Unavailable("the engine was closed"))

    def _fail(self, error: ServingError) -> None:
        """Ends every sequence with an error; what then cannot be freed is logged."""
        try:
            self._decoder.fail(error)
        except Exception:
            log.exception("the state of failed sequences could not be freed")

    @property
    def _has_work(self) -> bool:
        return bool(self._inbox) or self._is_closed or not self._decoder.is_idle

    def _sleep(self) -> None:
        """Waits for work; frees memory kept for speed alone after `trim_after_s`."""
        self._is_asleep = True
        try:
            if not self._changed.wait_for(lambda: self._has_work, self._rest_after_s):
                self._trim()
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._has_work)
        finally:
            self._is_asleep = False

    def _trim(self) -> None:
        """Frees memory kept for speed alone; what cannot be freed is tried after further work."""
        try:
            self._decoder.trim()
        except Exception:
            log.exception("memory could not be freed")
            self._decoder.metrics.failures += 1

    def _take_inbox(self) -> bool:
        """Moves new sequences to the decoder, sleeping while there is nothing to do.

        Returns:
            False when the engine is closed.
        """
        with self._changed:
            self._changed.notify_all()
            if not self._has_work:
                self._sleep()
            while self._inbox:
                self._add(self._inbox.popleft())
            return not self._is_closed

    def _add(self, sequence: SequenceState) -> None:
        """Queues a sequence; an exception ends only this one."""
        try:
            self._decoder.add(sequence)
        except Exception as error:
            self._decoder.metrics.failures += 1
            sequence.emit(Failed(hide_cause(error, "a sequence could not be queued")))
