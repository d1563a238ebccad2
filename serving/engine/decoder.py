"""The loop's body, without a thread: schedule → run → choose → deliver.

A turn is a transaction: sequences join and leave only between turns, and what raises ends only
those whose state it touched. `decode` drives it to the end for callers that have no need of a
server, such as the exporter's verification.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from serving.engine.lane import Entering, Lane, failure
from serving.engine.lanes import Lanes
from serving.engine.metrics import Metrics
from serving.engine.prefix import Block, PrefixStore
from serving.engine.request import Cancelled, Event, Failed, Finished, Piece, Request
from serving.engine.runner import Runner
from serving.engine.scheduler import Batch, Capacity, Room, Scheduler
from serving.engine.sequence import Sequence
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
        self.metrics = Metrics(slots=capacity.rows, state_limit_bytes=capacity.state_bytes)
        self._runner = runner
        self._capacity = capacity
        self._scheduler = Scheduler(capacity, takes_chunks=runner.takes_chunks)
        self._prefixes: PrefixStore[Block] | None = None
        if runner.shares_prefixes and capacity.prefix_bytes:
            self._prefixes = PrefixStore(
                capacity.prefix_bytes, capacity.prefix_block_tokens, capacity.prefix_least_tokens
            )
        self._lanes = Lanes(runner, capacity, self._prefixes)
        self._clock = clock
        self._joining: list[Sequence] = []  # between queue and lane, so that none is lost

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not len(self._scheduler) and not self.rows_in_use

    @property
    def rows_in_use(self) -> int:
        """Live rows over all widths, those of prompts that are being read included."""
        return self._lanes.rows

    @property
    def waiting(self) -> int:
        """Sequences without rows."""
        return len(self._scheduler)

    def refuse_too_large(self, request: Request) -> None:
        """Says what could never run, not even alone. For any thread.

        Raises:
            InvalidRequest: it asks for more rows than there are.
            TooLong: its state would need more memory than there is.
        """
        self._lanes.refuse_too_large(request)

    def add(self, sequence: Sequence) -> None:
        """Queues a sequence; what could never run is told so at once."""
        try:
            self._lanes.refuse_too_large(sequence.request)
        except InvalidRequest as error:
            sequence.tell(Failed(error))
            return
        self._scheduler.add(sequence, self._clock())

    def turn(self) -> None:
        """Ends what must end, takes every running sequence one step, reads prompts."""
        started_s = self._clock()
        self._scheduler.sweep(started_s)
        for lane in self._lanes:
            lane.sweep(started_s)
        is_decoding = self._step_lanes()
        self._read_prompts(is_decoding)
        self._lanes.drop_empty()
        self.metrics.steps += 1
        self.metrics.step_seconds += self._clock() - started_s
        self._gauge()

    def rest(self) -> None:
        """Gives back what is kept for speed alone."""
        self._runner.rest()
        self._gauge()

    def fail(self, error: Exception) -> None:
        """Ends every sequence with an error; the groups, whose state is suspect, go."""
        for sequence in (*self._lanes.clear(), *self._joining, *self._scheduler.clear()):
            sequence.tell(Failed(error))
        self._joining = []
        if self._prefixes is not None:
            self._prefixes.clear()
        self._gauge()

    def _step_lanes(self) -> bool:
        """Takes every running sequence one token further; False when there is none."""
        is_decoding = False
        for lane in self._lanes:
            if not lane.sequences:
                continue
            is_decoding = True
            self.metrics.row_steps += len(lane.sequences) * lane.group.width
            try:
                lane.step()
            except Exception as error:  # one group's trouble is not another's
                self._fail(self._lanes.lose(lane), error)
        return is_decoding

    def _read_prompts(self, is_decoding: bool) -> None:
        """Goes on with the long prompt, then takes in who waits, within the turn's budget."""
        capacity = self._capacity
        budget = capacity.prefill_tokens_beside if is_decoding else capacity.prefill_tokens
        left = budget
        for lane in self._lanes:
            for entering in list(lane.entering):
                left -= self._read_piece(lane, entering)
        while left > 0 and len(self._scheduler):
            batch = self._scheduler.next_batch(self._room(left, is_fresh=left == budget))
            if batch is None:
                return
            left -= self._take_in(batch)

    def _room(self, tokens: int, *, is_fresh: bool) -> Room:
        return Room(
            tokens=tokens,
            is_fresh=is_fresh,
            may_read_long=not any(lane.entering for lane in self._lanes),
            fits=self._lanes.fit,
            stored=self._stored,
            opening=self._opening,
        )

    def _take_in(self, batch: Batch) -> int:
        """Gives a batch its slots and reads its prompts, or a piece; returns tokens read."""
        self._joining = batch.sequences
        lane = self._lanes.of(batch.sequences, len(self._scheduler))
        read = batch.tokens
        if batch.is_alone:
            read = self._enter(lane, batch.sequences[0])
        else:
            self._attempt(lane, batch.sequences, lambda: lane.admit(batch.sequences))
            self.metrics.prefill_tokens += read
        self.metrics.admitted += len(batch.sequences)
        self._joining = []
        return read

    def _enter(self, lane: Lane, sequence: Sequence) -> int:
        """Begins with one prompt, from what is stored of it on; returns tokens read."""
        request = sequence.request
        blocks = self._prefixes.find(request.decoder_ids) if self._prefixes is not None else []
        entered: list[Entering] = []

        def begin() -> None:
            entered.append(Entering(sequence, self._runner.begin(request.prompt, blocks)))

        self._attempt(lane, [sequence], begin)
        if not entered:
            return request.encoder_tokens
        lane.entering += entered
        saved = len(request.decoder_ids) - entered[0].prefill.left
        self.metrics.prefix_hits += bool(saved)
        self.metrics.prefix_tokens += saved
        self.metrics.prefill_tokens += request.encoder_tokens
        return request.encoder_tokens + self._read_piece(lane, entered[0])

    def _read_piece(self, lane: Lane, entering: Entering) -> int:
        """Reads on in one prompt; returns tokens read."""
        size = min(entering.prefill.left, self._capacity.chunk_tokens)
        self._attempt(lane, [entering.sequence], lambda: lane.read(entering, size))
        self.metrics.prefill_tokens += size
        return size

    def _attempt(self, lane: Lane, sequences: list[Sequence], action: Callable[[], object]) -> None:
        """Does something for newcomers; what raises before they have slots ends only them."""
        try:
            action()
        except Exception as error:
            is_inside = any(sequence in lane.sequences for sequence in sequences)
            lane.entering = [e for e in lane.entering if e.sequence not in sequences]
            self._fail(self._lanes.lose(lane) if is_inside else sequences, error)

    def _fail(self, sequences: Iterable[Sequence], error: Exception) -> None:
        log.error("decoding failed", exc_info=error)
        self.metrics.failures += 1
        for sequence in sequences:
            sequence.tell(Failed(failure(error)))

    def _stored(self, sequence: Sequence) -> int:
        if self._prefixes is None:
            return 0
        return self._prefixes.count(sequence.request.decoder_ids)

    def _opening(self, sequence: Sequence) -> tuple[int, ...] | None:
        if self._prefixes is None:
            return None
        return self._prefixes.opening(sequence.request.decoder_ids)

    def _gauge(self) -> None:
        """Says how full the engine is."""
        metrics = self.metrics
        metrics.rows_in_use, metrics.waiting = self.rows_in_use, self.waiting
        metrics.state_bytes = self._lanes.state_bytes
        metrics.spare_bytes = self._runner.spare_bytes
        metrics.bytes_per_slot = metrics.state_bytes // max(1, metrics.rows_in_use)
        metrics.prefix_bytes = self._prefixes.nbytes if self._prefixes is not None else 0


def decode(
    runner: Runner, requests: Iterable[Request], capacity: Capacity | None = None
) -> list[Finished]:
    """Answers to all requests, in order, decoded together as far as capacity allows.

    Raises:
        Exception: what the first request that failed was told.
    """
    decoder = Decoder(runner, capacity or Capacity())
    outcomes: list[list[Event]] = []
    for request in requests:
        outcomes.append([])
        decoder.add(Sequence(request, outcomes[-1].append))
    while not decoder.is_idle:
        decoder.turn()
    return [answer(events) for events in outcomes]


def answer(events: Iterable[Event]) -> Finished:
    """The final event, pieces skipped.

    Raises:
        Exception: what the request was told, if it failed.
    """
    final = next(event for event in events if not isinstance(event, Piece))
    if isinstance(final, Failed):
        raise final.error
    assert not isinstance(final, Cancelled | Piece), "nobody cancels here"
    return final
