"""The queue_: requests that Triton has handed over wait here until the engine has room.

Waiting here and not in `execute` leaves the way into the process free, so that a client's leaving
is told at once. The gateway tells it by a second request with the same id: a cancelled gRPC stream
would have to be polled for, and Triton 2.51 loses some that end in the same moment (`sender`
asks nevertheless, for clients of Triton's own).
"""

from __future__ import annotations

import queue
import threading

from serving.backends.autoregressive.response_sender import PendingResponse, ResponseSender
from serving.engine.engine import Engine
from serving.engine.request import Cancelled, EngineRequest, Event, Failed, TokenChunk

_Visitor = tuple[str, PendingResponse, EngineRequest] | None
"""A request's id, its pending, and what is wanted; None, the queue_ closes."""


class PendingQueue:
    """First come, first served. One thread waits for the engine's room, if there is none.

    Args:
        engine: Takes requests from this queue_ alone.
        sender: Told whatever the engine tells.
    """

    def __init__(self, engine: Engine, sender: ResponseSender) -> None:
        self._engine = engine
        self._sender = sender
        self._waiting: queue.SimpleQueue[_Visitor] = queue.SimpleQueue()
        self._present: dict[str, PendingResponse] = {}
        self._count = 0
        """Visitors that the thread has still to submit."""
        self._counting = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="queue_", daemon=True)
        self._thread.start()

    def submit(self, request_id: str, pending: PendingResponse, wanted: EngineRequest) -> None:
        """Takes a request in; returns at once. One thread calls it."""
        if request_id:
            self._present[request_id] = pending
        if not self._count and self._engine.wait_for_capacity(timeout_s=0):
            self._submit(request_id, pending, wanted)
            return
        with self._counting:
            self._count += 1
        self._waiting.put((request_id, pending, wanted))

    def abort(self, request_id: str) -> None:
        """Ends a request wherever it is; one that has ended, or never came, is no error."""
        pending = self._present.pop(request_id, None)
        if pending is None:
            return
        pending.abort()
        if pending.sequence is None:
            self._sender.send(pending, Cancelled())

    def close(self) -> None:
        """Stops the thread; whoever waits still is told what the engine says, which is closed."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        """The queue_'s thread."""
        while (visitor := self._waiting.get()) is not None:
            if not visitor[1].is_aborted:
                self._engine.wait_for_capacity()  # only this thread submits: it stays free
                self._submit(*visitor)
            with self._counting:
                self._count -= 1

    def _submit(self, request_id: str, pending: PendingResponse, wanted: EngineRequest) -> None:
        def listen(event: Event) -> None:
            if not isinstance(event, TokenChunk):
                self._present.pop(request_id, None)
            self._sender.send(pending, event)

        if pending.is_aborted:
            return
        try:
            pending.sequence = self._engine.submit(wanted, listen)
        except Exception as error:  # the protocol's edge: every request gets its end
            listen(Failed(error))
            return
        if pending.is_aborted:
            pending.sequence.cancel()
