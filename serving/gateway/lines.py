"""Streams to Triton that carry many sequences each, told apart by their ids.

A stream of its own for every sequence costs a dozen wake-ups of gRPC's threads, and each of them
takes a core from the engine. So the sequences of a model share a line: it takes new ones for a
second, and closes when its last one has ended, so that a server that stops waits for nobody.

Nothing on a line is cancelled. Cancelling a gRPC stream leaves it to the model to ask whether
anybody is still there, and when the last response is sent in that moment, Triton 2.51 forgets the
request and keeps its model loaded for ever. So whoever leaves says so on the same line
(`serving.codec.ABORT`), and the sequence then comes to its natural end, which nobody reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import Protocol

from tritonclient.grpc.service_pb2 import (
    ModelInferRequest,
    ModelInferResponse,
    ModelStreamInferResponse,
)
from tritonclient.utils import InferenceServerException

from serving.codec import ABORT

TAKING_S = 1.0
"""A line takes sequences for so long."""
PLACES = 8
"""A line carries so many sequences at once, for Triton writes its responses one after the other."""
PATIENCE_S = 10.0
"""For the end of sequences that were called off; the process behind them may be dead."""


class Stream(Protocol):
    """A bidirectional call of `grpc.aio`."""

    def __aiter__(self) -> AsyncIterator[ModelStreamInferResponse]:
        """Responses, until the call ends; raises what ended it."""
        ...

    def cancel(self) -> bool:
        """Ends the call."""
        ...


Opened = Callable[[AsyncIterable[ModelInferRequest]], Stream]
"""Begins a stream, given what is to be sent."""


class Lines:
    """The lines of one connection, a model's sequences on its own. Used on one event loop.

    Args:
        opened: Begins a stream.
    """

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._taking: dict[str, list[Line]] = {}
        self.reading: set[asyncio.Task[None]] = set()
        """One task for each open line."""

    def begin(self, request: ModelInferRequest) -> SequenceOnLine:
        """Sends a request, whose id is its own; returns at once."""
        lines = [line for line in self._taking.get(request.model_name, ()) if line.is_taking]
        self._taking[request.model_name] = lines
        line = next((line for line in lines if line.has_place), None)
        if line is None:
            line = Line(self._opened)
            lines.append(line)
            self.reading.add(line.reading)
            line.reading.add_done_callback(self.reading.discard)
        return line.begin(request)

    async def close(self, patience_s: float) -> None:
        """Let sequences that were called off end."""
        for lines in self._taking.values():
            for line in lines:
                line.retire()
        if self.reading:
            await asyncio.wait(self.reading, timeout=patience_s)


class Line:
    """One stream. Opens at once.

    Attributes:
        is_taking: Whether further sequences may begin on it.
    """

    def __init__(self, opened: Opened) -> None:
        self.is_taking = True
        self._live: dict[str, SequenceOnLine] = {}
        self._to_send: asyncio.Queue[ModelInferRequest | None] = asyncio.Queue()
        self._answers = opened(self._requests())
        self._loop = asyncio.get_running_loop()
        self._patience: asyncio.TimerHandle | None = None
        self._loop.call_later(TAKING_S, self.retire)
        self.reading = self._loop.create_task(self._read())

    @property
    def has_place(self) -> bool:
        """Whether it carries fewer sequences than it may."""
        return len(self._live) < PLACES

    def begin(self, request: ModelInferRequest) -> SequenceOnLine:
        """Sends a request; returns at once."""
        assert self.is_taking
        sequence = self._live[request.id] = SequenceOnLine(self, request)
        self._to_send.put_nowait(request)
        return sequence

    def call_off(self, sequence: SequenceOnLine) -> None:
        """Says that nobody waits for a sequence any more, unless it has ended."""
        request = sequence.request
        if request.id not in self._live:
            return
        sequence.is_called_off = True
        again = ModelInferRequest()
        again.CopyFrom(request)
        again.parameters[ABORT].bool_param = True
        self._to_send.put_nowait(again)
        self._settle()

    def retire(self) -> None:
        """Take no more sequences; close when those on it have ended."""
        self.is_taking = False
        self._settle()

    def _settle(self) -> None:
        """Closes what nobody needs; gives those that were called off some time to end."""
        if not self._live and not self.is_taking:
            self._to_send.put_nowait(None)
        elif self._is_deserted and self._patience is None:
            self._patience = self._loop.call_later(PATIENCE_S, self._lose_patience)

    @property
    def _is_deserted(self) -> bool:
        return bool(self._live) and all(s.is_called_off for s in self._live.values())

    def _lose_patience(self) -> None:
        self._patience = None
        if self._is_deserted:
            self._answers.cancel()

    async def _requests(self) -> AsyncIterator[ModelInferRequest]:
        while (request := await self._to_send.get()) is not None:
            yield request

    async def _read(self) -> None:
        """Hands responses on, until the stream ends; what breaks it breaks all that is on it."""
        failure: Exception | None = None
        try:
            async for response in self._answers:
                self._hand_on(response)
        except asyncio.CancelledError:  # by lost patience, or by the end of the program
            pass
        except Exception as error:  # whoever waits for responses is told
            failure = error
        finally:
            for sequence in list(self._live.values()):
                self._end(sequence, failure)
            self.retire()
            if self._patience is not None:
                self._patience.cancel()

    def _hand_on(self, response: ModelStreamInferResponse) -> None:
        answer = response.infer_response
        sequence = self._live.get(answer.id)
        if sequence is None:  # the answer to a sequence's being called off, after its end
            return
        if response.error_message:
            self._end(sequence, InferenceServerException(response.error_message))
            return
        if answer.outputs:
            sequence.tell(answer)
        if answer.parameters["triton_final_response"].bool_param:
            self._end(sequence)

    def _end(self, sequence: SequenceOnLine, failure: Exception | None = None) -> None:
        del self._live[sequence.request.id]
        sequence.tell(failure)
        self._settle()


class SequenceOnLine:
    """One sequence, from its request to its last response."""

    def __init__(self, line: Line, request: ModelInferRequest) -> None:
        self.request = request
        self.is_called_off = False
        self._line = line
        self._told: asyncio.Queue[ModelInferResponse | Exception | None] = asyncio.Queue()

    async def responses(self) -> AsyncIterator[ModelInferResponse]:
        """Responses as they come, until the last.

        Raises:
            InferenceServerException: what Triton answered.
            RpcError: the connection broke.
        """
        while (told := await self._told.get()) is not None:
            if isinstance(told, Exception):
                raise told
            yield told

    def leave(self) -> None:
        """Call the sequence off, unless it has ended; returns at once."""
        self._line.call_off(self)

    def tell(self, told: ModelInferResponse | Exception | None) -> None:
        """A response, an error that is the last, or None, the end."""
        self._told.put_nowait(told)
