"""The engine: one thread that owns a decoder, and the door that other threads knock at."""

from __future__ import annotations

import logging
import threading
from collections import deque

from serving.engine.decoder import Decoder, answer
from serving.engine.intake import Intake
from serving.engine.lane import failure
from serving.engine.metrics import Metrics
from serving.engine.request import Event, Finished, Listener, Piece, Request
from serving.engine.runner import Runner
from serving.engine.scheduler import Capacity
from serving.engine.sequence import Sequence
from serving.errors import Overloaded, Unavailable

log = logging.getLogger(__name__)

REST_AFTER_S = 10.0


class Engine:
    """Continuous batching over one runner. All methods may be called from any thread.

    Args:
        runner: Owned from now on; closed by `close`.
        intake: Checks each request before it may share a batch.
        capacity: What is held at once.
        rest_after_s: Idle time after which memory that is kept for speed is given back.
    """

    def __init__(
        self,
        runner: Runner,
        intake: Intake,
        capacity: Capacity | None = None,
        rest_after_s: float = REST_AFTER_S,
    ) -> None:
        self._runner = runner
        self._intake = intake
        self._capacity = capacity or Capacity()
        self._decoder = Decoder(runner, self._capacity)
        self._inbox: deque[Sequence] = deque()
        self._rest_after_s = rest_after_s
        self._is_closed = False
        self._is_asleep = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
        self._thread.start()

    @property
    def metrics(self) -> Metrics:
        """Counters; read only."""
        return self._decoder.metrics

    @property
    def is_asleep(self) -> bool:
        """Whether its thread waits for work, so that no step is to be expected."""
        return self._is_asleep and self._thread.is_alive()

    def submit(self, request: Request, listener: Listener) -> Sequence:
        """Accepts a request; its listener is called from the engine's thread.

        Returns:
            A handle with `cancel()`.

        Raises:
            InvalidRequest: the model cannot serve it.
            Overloaded: as many as may wait are waiting.
            Unavailable: the engine is closed.
        """
        accepted = self._intake.accept(request)
        self._decoder.refuse_too_large(accepted)
        sequence = Sequence(accepted, listener)
        with self._changed:
            if self._is_closed:
                raise Unavailable("the engine is closed")
            if self._waiting >= self._capacity.waiting:
                raise Overloaded(f"{self._waiting} requests are waiting", retry_after_s=1)
            self._inbox.append(sequence)
            self._changed.notify_all()
        return sequence

    def wait_for_room(self, timeout_s: float | None = None) -> bool:
        """Blocks until a request would be accepted, or the engine is closed.

        Returns:
            Whether there is room, which another thread may take first.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._has_room or self._is_closed, timeout_s)
            return self._has_room and not self._is_closed

    def generate(self, request: Request) -> Finished:
        """The answer to one request; blocks, waiting for room first.

        Raises:
            TriptychError: whatever the request was told.
        """
        done = threading.Event()
        events: list[Event] = []

        def listen(event: Event) -> None:
            events.append(event)
            if not isinstance(event, Piece):
                done.set()

        self.wait_for_room()
        self.submit(request, listen)
        done.wait()
        return answer(events)

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
    def _has_room(self) -> bool:
        return self._waiting < self._capacity.waiting

    def _loop(self) -> None:
        """The engine's thread."""
        while self._take_inbox():
            try:
                self._decoder.turn()
            except Exception as error:
                log.exception("engine turn failed")
                self._decoder.metrics.failures += 1
                self._decoder.fail(failure(error))
        self._decoder.fail(Unavailable("the engine was closed"))

    @property
    def _has_work(self) -> bool:
        return bool(self._inbox) or self._is_closed or not self._decoder.is_idle

    def _sleep(self) -> None:
        """Waits for work; gives back what is kept for speed when none comes for a while."""
        self._is_asleep = True
        if not self._changed.wait_for(lambda: self._has_work, self._rest_after_s):
            self._decoder.rest()
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._has_work)
        self._is_asleep = False

    def _take_inbox(self) -> bool:
        """Moves new sequences to the decoder, sleeping while there is nothing to do.

        Returns:
            Whether to go on.
        """
        with self._changed:
            self._changed.notify_all()
            if not self._has_work:
                self._sleep()
            while self._inbox:
                self._decoder.add(self._inbox.popleft())
            return not self._is_closed
