"""The hall: requests that Triton has handed over wait here until the engine has room.

Waiting here and not in `execute` leaves the way into the process free, so that a client's leaving
is told at once. The gateway tells it by a second request with the same id: a cancelled gRPC stream
would have to be polled for, and Triton 2.51 loses some that end in the same moment (`responder`
asks nevertheless, for clients of Triton's own).
"""

from __future__ import annotations

import queue
import threading

from serving.backends.autoregressive.responder import Conversation, Responder
from serving.engine.engine import Engine
from serving.engine.request import Cancelled, Event, Failed, Piece, Request

_Visitor = tuple[str, Conversation, Request] | None
"""A request's id, its conversation, and what is wanted; None, the hall closes."""


class Hall:
    """First come, first served. One thread waits for the engine's room, if there is none.

    Args:
        engine: Takes requests from this hall alone.
        responder: Told whatever the engine tells.
    """

    def __init__(self, engine: Engine, responder: Responder) -> None:
        self._engine = engine
        self._responder = responder
        self._waiting: queue.SimpleQueue[_Visitor] = queue.SimpleQueue()
        self._present: dict[str, Conversation] = {}
        self._count = 0
        """Visitors that the thread has still to submit."""
        self._counting = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="hall", daemon=True)
        self._thread.start()

    def enter(self, request_id: str, conversation: Conversation, wanted: Request) -> None:
        """Takes a request in; returns at once. One thread calls it."""
        if request_id:
            self._present[request_id] = conversation
        if not self._count and self._engine.wait_for_room(timeout_s=0):
            self._submit(request_id, conversation, wanted)
            return
        with self._counting:
            self._count += 1
        self._waiting.put((request_id, conversation, wanted))

    def call_off(self, request_id: str) -> None:
        """Ends a request wherever it is; one that has ended, or never came, is no error."""
        conversation = self._present.pop(request_id, None)
        if conversation is None:
            return
        conversation.call_off()
        if conversation.sequence is None:
            self._responder.tell(conversation, Cancelled())

    def close(self) -> None:
        """Stops the thread; whoever waits still is told what the engine says, which is closed."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        """The hall's thread."""
        while (visitor := self._waiting.get()) is not None:
            if not visitor[1].is_called_off:
                self._engine.wait_for_room()  # nobody else submits meanwhile: the room stays ours
                self._submit(*visitor)
            with self._counting:
                self._count -= 1

    def _submit(self, request_id: str, conversation: Conversation, wanted: Request) -> None:
        def listen(event: Event) -> None:
            if not isinstance(event, Piece):
                self._present.pop(request_id, None)
            self._responder.tell(conversation, event)

        if conversation.is_called_off:
            return
        try:
            conversation.sequence = self._engine.submit(wanted, listen)
        except Exception as error:  # the protocol's edge: every request gets its end
            listen(Failed(error))
            return
        if conversation.is_called_off:
            conversation.sequence.cancel()
