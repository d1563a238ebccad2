"""The response thread: sends what the engine tells, and asks who has left.

Sending and asking are blocking round trips to Triton, so the decode loop does neither: its
listener puts an event into a queue. Pieces that are ready together travel together.
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

from serving.codec import (
    Arrays,
    encode_chunks,
    encode_error,
    encode_finished,
)
from serving.engine.request import Event, Failed, Finished, TokenChunk
from serving.engine.sequence import SequenceState

CANCELLATION_POLL_S = 1.0
"""For direct clients of Triton; the gateway sends an abort (`pending_queue`). Each poll is a round
trip that slows the decode loop, so requests younger than one interval are not polled."""

log = logging.getLogger(__name__)
Ts = TypeVarTuple("Ts")


class Channel(Protocol):
    """One request's way back through Triton."""

    def send(self, arrays: Arrays, *, is_final: bool) -> None:
        """Sends a response."""
        ...

    def fail(self, message: str) -> None:
        """Sends an error, and ends."""
        ...

    def end(self) -> None:
        """Ends without a further response."""
        ...

    def is_cancelled(self) -> bool:
        """Whether the client has left."""
        ...


@dataclass(eq=False)
class PendingResponse:
    """A request on its way through the engine.

    Attributes:
        sequence: The engine's handle, once it has accepted the request.
        is_aborted: Whether the client has left.
        unsent: Pieces told and not yet sent.
    """

    channel: Channel
    sequence: SequenceState | None = None
    is_aborted: bool = False
    unsent: list[TokenChunk] = field(default_factory=list)

    def abort(self) -> None:
        """Ends the sequence before its next step, from any thread."""
        self.is_aborted = True  # first, so that whoever submits just now sees it
        if self.sequence is not None:
            self.sequence.cancel()


_Item = tuple[PendingResponse, Event] | None
"""An event; None, the sender ends."""


class ResponseSender:
    """One thread for all conversations of a model."""

    def __init__(self, poll_s: float = CANCELLATION_POLL_S) -> None:
        self._poll_s = poll_s
        self._events: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._live: set[PendingResponse] = set()
        self._polled: set[PendingResponse] = set()
        """Those that lived when it was last time to poll."""
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)
        self._thread.start()

    def open(self, channel: Channel) -> PendingResponse:
        """Begins a pending: its client is watched until it is told its end."""
        pending = PendingResponse(channel)
        self._live.add(pending)
        return pending

    def send(self, pending: PendingResponse, event: Event) -> None:
        """Queues an event for sending; returns at once."""
        self._events.put((pending, event))

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
        """Everything told since, waiting for the first; empty when it is time to poll."""
        timeout_s = max(0.0, next_poll_s - time.monotonic())
        told: list[_Item] = []
        with contextlib.suppress(queue.Empty):
            told.append(self._events.get(timeout=timeout_s))
            while True:
                told.append(self._events.get_nowait())
        return told

    def _deliver(self, told: list[_Item]) -> bool:
        """Sends a batch of events; False when the last was the end of all."""
        streaming: dict[PendingResponse, None] = {}
        for item in told:
            if item is None:
                return False
            pending, event = item
            if isinstance(event, TokenChunk):
                pending.unsent.append(event)
                streaming[pending] = None
            elif pending in self._live:  # the first end is the end
                streaming.pop(pending, None)
                self._live.discard(pending)
                _attempt(_send_end, pending, event)
        for pending in streaming:
            _attempt(_send_chunks, pending)
        return True

    def _poll(self) -> None:
        """Calls off conversations whose clients have left; new ones are asked about next time."""
        for pending in self._live & self._polled:
            if not pending.is_aborted:
                _attempt(_abort_if_cancelled, pending)
        self._polled = self._live.copy()


def _abort_if_cancelled(pending: PendingResponse) -> None:
    if pending.channel.is_cancelled():
        pending.abort()


def _send_chunks(pending: PendingResponse) -> None:
    chunks, pending.unsent = pending.unsent, []
    pending.channel.send(encode_chunks(chunks), is_final=False)


def _send_end(pending: PendingResponse, event: Event) -> None:
    if isinstance(event, Finished):
        arrays = encode_finished(event, pending.unsent)
        pending.channel.send(arrays, is_final=True)
    elif isinstance(event, Failed):
        pending.channel.fail(encode_error(event.error))
    else:
        pending.channel.end()


def _attempt(trip: Callable[[*Ts], None], *arguments: *Ts) -> None:
    """Runs one round trip; a channel that broke must not silence the others."""
    try:
        trip(*arguments)
    except Exception:  # the protocol's edge: Triton's errors share no base
        log.exception("a round trip to Triton failed")
