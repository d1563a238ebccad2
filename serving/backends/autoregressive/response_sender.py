"""The response thread: sends events to Triton and polls for cancelled requests.

Both are blocking round trips to Triton, so the decode loop does neither: its listener puts an
event into a queue. Chunks that are queued together are sent as one.
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
from inference.engine.search.request import Event, Failed
from inference.engine.sequence import SequenceState
from inference.model_errors import encode_error
from inference.sequences import Finished, TokenChunk

CANCELLATION_POLL_S = 1.0
"""For direct clients of Triton; the gateway sends an abort (`pending_queue`). Each poll is a round
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


_Item = tuple[PendingResponse, Event] | None
"""An event of a request; None stops the thread."""


class ResponseSender:
    """One thread for all responses of a model.

    Args:
        poll_s: Interval between polls for cancelled requests.
    """

    def __init__(self, poll_s: float = CANCELLATION_POLL_S) -> None:
        self._poll_s = poll_s
        self._events: queue.SimpleQueue[_Item] = queue.SimpleQueue()
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

    def _wait(self, next_poll_s: float) -> list[_Item]:
        """All queued events, waiting for the first; empty when it is time to poll."""
        timeout_s = max(0.0, next_poll_s - time.monotonic())
        items: list[_Item] = []
        with contextlib.suppress(queue.Empty):
            items.append(self._events.get(timeout=timeout_s))
            while True:
                items.append(self._events.get_nowait())
        return items

    def _deliver(self, items: list[_Item]) -> bool:
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
