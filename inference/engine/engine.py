"""The engine: one thread that owns a decoder, and the thread-safe submission API."""

from __future__ import annotations

import logging
import threading
from collections import deque

from inference.engine.engine_core import EngineCore, final_result
from inference.engine.metrics import EngineMetrics
from inference.engine.runners.protocol import Runner
from inference.engine.scheduler import Capacity
from inference.engine.search.request import EngineRequest, Event, Failed, Listener
from inference.engine.sequence import SequenceState
from inference.engine.validation import RequestValidator
from inference.errors import Overloaded, ServingError, Unavailable
from inference.model_errors import hide_cause
from inference.sequences import Finished, TokenChunk

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
