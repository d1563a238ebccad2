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

from serving.backends.autoregressive.wire import (
    Arrays,
    answer_arrays,
    error_text,
    piece_arrays,
)
from serving.engine.request import Event, Failed, Finished, Piece
from serving.engine.sequence import Sequence

CANCELLATION_POLL_S = 1.0
"""For clients of Triton's own; the gateway says so when one leaves (`hall.py`). Each question is a
round trip that costs the decode loop some time, so short conversations are not asked about."""

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
class Conversation:
    """A request on its way through the engine.

    Attributes:
        sequence: The engine's handle, once it has accepted the request.
        is_called_off: Whether the client has left.
        unsent: Pieces told and not yet sent.
    """

    channel: Channel
    sequence: Sequence | None = None
    is_called_off: bool = False
    unsent: list[Piece] = field(default_factory=list)

    def call_off(self) -> None:
        """Ends the sequence before its next step, from any thread."""
        self.is_called_off = True  # first, so that whoever submits just now sees it
        if self.sequence is not None:
            self.sequence.cancel()


_Told = tuple[Conversation, Event] | None
"""An event; None, the responder ends."""


class Responder:
    """One thread for all conversations of a model."""

    def __init__(self, poll_s: float = CANCELLATION_POLL_S) -> None:
        self._poll_s = poll_s
        self._told: queue.SimpleQueue[_Told] = queue.SimpleQueue()
        self._live: set[Conversation] = set()
        self._polled: set[Conversation] = set()
        """Those that lived when it was last time to poll."""
        self._thread = threading.Thread(target=self._run, name="responder", daemon=True)
        self._thread.start()

    def open(self, channel: Channel) -> Conversation:
        """Begins a conversation: its client is watched until it is told its end."""
        conversation = Conversation(channel)
        self._live.add(conversation)
        return conversation

    def tell(self, conversation: Conversation, event: Event) -> None:
        """Queues an event for sending; returns at once."""
        self._told.put((conversation, event))

    def close(self) -> None:
        """Sends what is queued, then stops the thread."""
        self._told.put(None)
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

    def _wait(self, next_poll_s: float) -> list[_Told]:
        """Everything told since, waiting for the first; empty when it is time to poll."""
        timeout_s = max(0.0, next_poll_s - time.monotonic())
        told: list[_Told] = []
        with contextlib.suppress(queue.Empty):
            told.append(self._told.get(timeout=timeout_s))
            while True:
                told.append(self._told.get_nowait())
        return told

    def _deliver(self, told: list[_Told]) -> bool:
        """Sends a batch of events; False when the last was the end of all."""
        streaming: dict[Conversation, None] = {}
        for item in told:
            if item is None:
                return False
            conversation, event = item
            if isinstance(event, Piece):
                conversation.unsent.append(event)
                streaming[conversation] = None
            elif conversation in self._live:  # the first end is the end
                streaming.pop(conversation, None)
                self._live.discard(conversation)
                _attempt(_send_end, conversation, event)
        for conversation in streaming:
            _attempt(_send_piece, conversation)
        return True

    def _poll(self) -> None:
        """Calls off conversations whose clients have left; new ones are asked about next time."""
        for conversation in self._live & self._polled:
            if not conversation.is_called_off:
                _attempt(_call_off_if_left, conversation)
        self._polled = self._live.copy()


def _call_off_if_left(conversation: Conversation) -> None:
    if conversation.channel.is_cancelled():
        conversation.call_off()


def _send_piece(conversation: Conversation) -> None:
    pieces, conversation.unsent = conversation.unsent, []
    conversation.channel.send(piece_arrays(pieces), is_final=False)


def _send_end(conversation: Conversation, event: Event) -> None:
    if isinstance(event, Finished):
        arrays = answer_arrays(event, conversation.unsent)
        conversation.channel.send(arrays, is_final=True)
    elif isinstance(event, Failed):
        conversation.channel.fail(error_text(event.error))
    else:
        conversation.channel.end()


def _attempt(trip: Callable[[*Ts], None], *arguments: *Ts) -> None:
    """Runs one round trip; a channel that broke must not silence the others."""
    try:
        trip(*arguments)
    except Exception:  # the protocol's edge: Triton's errors share no base
        log.exception("a round trip to Triton failed")
