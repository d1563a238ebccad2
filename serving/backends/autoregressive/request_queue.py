"""Between the threads of Triton and of the engine: requests that wait, and responses to be sent.

Requests that Triton has delivered and the engine has no place for yet wait in `PendingQueue` and
not in `execute`, so that `execute` can take an abort at any time. The gateway aborts by a second
request with the same id: a cancelled gRPC stream would have to be polled for, and Triton 2.51 loses
some that end at that moment (`ResponseSender` polls nevertheless, for direct clients of Triton).

`ResponseSender` sends events to Triton and polls for cancelled requests. Both are blocking round
trips to Triton, so the decode loop does neither: its listener puts an event into a queue. Chunks
that are queued together are sent as one.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVarTuple

from inference.engine.codec import Arrays, encode_chunks, encode_finished
from inference.engine.engine import Engine
from inference.engine.request import Cancelled, EngineRequest, Event, Failed
from inference.engine.sequence import SequenceState
from inference.generation import Finished, TokenChunk
from inference.model_errors import encode_error

CANCELLATION_POLL_S = 1.0
"""For direct clients of Triton; the gateway sends an abort. Each poll is a round
trip that slows the decode loop, so requests younger than one interval are not polled."""

log = logging.getLogger(__name__)
Ts = TypeVarTuple("Ts")


class Channel(Protocol):
    """One request's responses to Triton."""

    def send(self, arrays: Arrays, *, is_final: bool) -> None:
        """Sends a response."""
        ...

    def fail(self, message: str) -> None:
        """Sends an error as the final response."""
        ...

    def end(self) -> None:
        """Ends without a further response."""
        ...

    def is_cancelled(self) -> bool:
        """Whether the client has cancelled the request."""
        ...


@dataclass(eq=False)
class PendingResponse:
    """A request whose final response has not been sent.

    Attributes:
        sequence: The engine's handle, once the engine has accepted the request.
        is_aborted: Whether the client needs no response any more.
        unsent: Chunks not sent yet.
    """

    channel: Channel
    sequence: SequenceState | None = None
    is_aborted: bool = False
    unsent: list[TokenChunk] = field(default_factory=list)

    def abort(self) -> None:
        """Ends the sequence before its next step. Thread-safe."""
        self.is_aborted = True  # before the check, so that a concurrent submission sees it
        if self.sequence is not None:
            self.sequence.cancel()


_Response = tuple[PendingResponse, Event] | None
"""An event of a request; None stops the thread."""


class ResponseSender:
    """One thread for all responses of a model.

    Args:
        poll_s: Interval between polls for cancelled requests.
    """

    def __init__(self, poll_s: float = CANCELLATION_POLL_S) -> None:
        self._poll_s = poll_s
        self._events: queue.SimpleQueue[_Response] = queue.SimpleQueue()
        self._live: set[PendingResponse] = set()
        self._polled: set[PendingResponse] = set()
        """Those that were live at the last poll."""
        self._thread = threading.Thread(target=self._run, name="response_sender", daemon=True)
        self._thread.start()

    def open(self, channel: Channel) -> PendingResponse:
        """A response that is polled for cancellation until its final event."""
        response = PendingResponse(channel)
        self._live.add(response)
        return response

    def send(self, response: PendingResponse, event: Event) -> None:
        """Queues an event for sending; returns at once."""
        self._events.put((response, event))

    def close(self) -> None:
        """Sends what is queued, then stops the thread."""
        self._events.put(None)
        self._thread.join()

    def _run(self) -> None:
        """The response thread."""
        next_poll_s = time.monotonic() + self._poll_s
        is_open = True
        while is_open:
            is_open = self._deliver(self._wait(next_poll_s))
            if time.monotonic() >= next_poll_s:
                self._poll()
                next_poll_s = time.monotonic() + self._poll_s

    def _wait(self, next_poll_s: float) -> list[_Response]:
        """All queued events, waiting for the first; empty when it is time to poll."""
        timeout_s = max(0.0, next_poll_s - time.monotonic())
        items: list[_Response] = []
        with contextlib.suppress(queue.Empty):
            items.append(self._events.get(timeout=timeout_s))
            while True:
                items.append(self._events.get_nowait())
        return items

    def _deliver(self, items: list[_Response]) -> bool:
        """Sends a batch of events; returns False when the thread must stop."""
        streaming: dict[PendingResponse, None] = {}
        for item in items:
            if item is None:
                return False
            response, event = item
            if isinstance(event, TokenChunk):
                response.unsent.append(event)
                if not event.is_last:  # else they are part of the final response
                    streaming[response] = None
            elif response in self._live:  # only the first final event counts
                streaming.pop(response, None)
                self._live.discard(response)
                _log_failure(_send_final, response, event)
        for response in streaming:
            _log_failure(_send_chunks, response)
        return True

    def _poll(self) -> None:
        """Aborts cancelled requests; new ones are polled next time."""
        for response in self._live & self._polled:
            if not response.is_aborted:
                _log_failure(_abort_if_cancelled, response)
        self._polled = self._live.copy()


def _abort_if_cancelled(response: PendingResponse) -> None:
    if response.channel.is_cancelled():
        response.abort()


def _send_chunks(response: PendingResponse) -> None:
    chunks, response.unsent = response.unsent, []
    response.channel.send(encode_chunks(chunks), is_final=False)


def _send_final(response: PendingResponse, event: Event) -> None:
    if isinstance(event, Finished):
        response.channel.send(encode_finished(event, response.unsent), is_final=True)
    elif isinstance(event, Failed):
        response.channel.fail(encode_error(event.error))
    else:
        response.channel.end()


def _log_failure(trip: Callable[[*Ts], None], *arguments: *Ts) -> None:
    """Runs one round trip; a broken channel must not stop the others."""
    try:
        trip(*arguments)
    except Exception:  # the protocol's edge: Triton's errors share no base class
        log.exception("a round trip to Triton failed")


_Request = tuple[str, PendingResponse, EngineRequest] | None
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
        self._waiting: queue.SimpleQueue[_Request] = queue.SimpleQueue()
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
