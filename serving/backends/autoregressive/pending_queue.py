"""The queue of requests that Triton has delivered and the engine has no place for yet.

Requests wait here and not in `execute`, so that `execute` can take an abort at any time. The
gateway aborts by a second request with the same id: a cancelled gRPC stream would have to be
polled for, and Triton 2.51 loses some that end at that moment (`response_sender` polls
nevertheless, for direct clients of Triton).
"""

from __future__ import annotations

import queue
import threading

from inference.engine.engine import Engine
from inference.engine.search.request import Cancelled, EngineRequest, Event, Failed
from inference.sequences import TokenChunk
from serving.backends.autoregressive.response_sender import PendingResponse, ResponseSender

_Item = tuple[str, PendingResponse, EngineRequest] | None
"""A request's id, its response and the request; None closes the queue."""


class PendingQueue:
    """First in, first out. One thread waits for places in the engine while there are none.

    Args:
        engine: Gets its requests from this queue alone.
        sender: Gets all events of the engine.
    """

    def __init__(self, engine: Engine, sender: ResponseSender) -> None:
        self._engine = engine
        self._sender = sender
        self._waiting: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._live: dict[str, PendingResponse] = {}
        self._count = 0
        """Requests that the thread has still to submit."""
        self._counting = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="pending_queue", daemon=True)
        self._thread.start()

    def submit(self, request_id: str, response: PendingResponse, request: EngineRequest) -> None:
        """Takes a request; returns at once. One thread calls it."""
        if request_id:
            self._live[request_id] = response
        if not self._count and self._engine.wait_for_capacity(timeout_s=0):
            self._submit(request_id, response, request)
            return
        with self._counting:
            self._count += 1
        self._waiting.put((request_id, response, request))

    def abort(self, request_id: str) -> None:
        """Ends a queued or running request; an unknown or finished id is no error."""
        response = self._live.pop(request_id, None)
        if response is None:
            return
        response.abort()
        if response.sequence is None:
            self._sender.send(response, Cancelled())

    def close(self) -> None:
        """Stops the thread; queued requests fail because the engine is closed."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        """The queue's thread."""
        while (item := self._waiting.get()) is not None:
            if not item[1].is_aborted:
                self._engine.wait_for_capacity()  # only this thread submits: the place stays free
            self._submit(*item)
            with self._counting:
                self._count -= 1

    def _submit(self, request_id: str, response: PendingResponse, request: EngineRequest) -> None:
        def listen(event: Event) -> None:
            if not isinstance(event, TokenChunk):
                self._live.pop(request_id, None)
            self._sender.send(response, event)

        if response.is_aborted:  # by `abort`, which has ended it, or by the poll, which has not
            listen(Cancelled())
            return
        try:
            response.sequence = self._engine.submit(request, listen)
        except Exception as error:  # the protocol's edge: every request gets a final response
            listen(Failed(error))
            return
        if response.is_aborted:
            response.sequence.cancel()
