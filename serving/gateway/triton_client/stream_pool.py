"""gRPC streams to Triton that carry many sequences each, identified by request id.

A stream for every sequence costs a dozen wake-ups of gRPC's threads, and each of them takes a core
from the engine. So the sequences of a model share streams. A stream is open while it gets
new sequences, and closes within a second of its last one, so it does not delay the shutdown of a
server. Only the sequences of traced requests have a stream each, whose metadata is their trace
context.

No stream is cancelled. After the cancellation of a gRPC stream the model has to poll for it, and if
it sends its last response at that moment, Triton 2.51 loses the request and keeps the model loaded
forever. Instead a sequence is aborted by a message on its own stream
(`inference.engine.codec.ABORT`); it then ends normally, and its last response is discarded.

A message for a version that is not loaded ends Triton 2.51 where other sequences of its stream
run: their responses and the refusal are written at once, which gRPC refuses with the assertion
`!byte_buffer->Valid()`. So a sequence of a version that is not the served one has a stream of its
own, and is not aborted by a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, TypeAlias

from tritonclient.grpc.service_pb2 import (
    ModelInferRequest,
    ModelInferResponse,
    ModelStreamInferResponse,
)
from tritonclient.utils import InferenceServerException

from inference.engine.codec import ABORT
from inference.errors import Overloaded

UNUSED_S = 0.5
"""A stream that has got no new sequence for so long, or twice as long, takes none any more."""
MAX_SEQUENCES = 8
"""Sequences of one stream: Triton writes the responses of a stream one after the other."""
ABORT_TIMEOUT_S = 10.0
"""Time in which aborted sequences must end, then the stream is cancelled: the model process may be
dead."""


MAX_UNREAD = 2048
"""Responses of a sequence that wait to be read; with a further one it is aborted."""


OpenStream: TypeAlias = Callable[..., Any]
"""A method of `grpc.aio`: makes a bidirectional call of its requests and `metadata`. The call is an
asynchronous iterator of responses, which raises what ends it, and has `cancel`."""


class StreamPool:
    """The streams of one connection; each carries sequences of one model. Used on one event loop.

    Args:
        open_stream: Opens a stream.
    """

    def __init__(self, open_stream: OpenStream) -> None:
        self._open_stream = open_stream
        self._streams: dict[str, list[TritonStream]] = {}
        self._served: dict[str, str] = {}
        self.reading: set[asyncio.Task[None]] = set()
        """One task for each open stream."""

    def note_served(self, model: str, version: int) -> None:
        """Note which version new requests go to; another one may be unloaded at any time."""
        self._served[model] = str(version)

    def may_be_gone(self, request: ModelInferRequest) -> bool:
        """Whether another version than the request's is known to be served."""
        served = self._served.get(request.model_name)
        return served is not None and served != request.model_version

    def begin(
        self, request: ModelInferRequest, headers: Mapping[str, str] | None = None
    ) -> StreamedSequence:
        """Send a request; returns at once.

        Args:
            request: Its id must be unique.
            headers: Of its stream, which it then has for itself.
        """
        if headers or self.may_be_gone(request):
            own = self._open(tuple(headers.items()) if headers else None)
            own.is_open = False
            return own.begin(request)
        streams = [s for s in self._streams.get(request.model_name, ()) if s.is_open]
        self._streams[request.model_name] = streams
        stream = next((stream for stream in streams if stream.has_room), None)
        if stream is None:
            stream = self._open()
            streams.append(stream)
        return stream.begin(request)

    def _open(self, metadata: tuple[tuple[str, str], ...] | None = None) -> TritonStream:
        stream = TritonStream(self._open_stream, metadata, self.may_be_gone)
        self.reading.add(stream.reading)
        stream.reading.add_done_callback(self.reading.discard)
        return stream

    async def close(self, timeout_s: float) -> None:
        """Wait for aborted sequences to end."""
        for streams in self._streams.values():
            for stream in streams:
                stream.retire()
        if self.reading:
            await asyncio.wait(self.reading, timeout=timeout_s)


class TritonStream:
    """One stream. Opens at once.

    Args:
        open_stream: Opens it.
        metadata: Its headers.
        may_be_gone: Whether a message for the version of this request may be refused.

    Attributes:
        is_open: Whether it takes further sequences.
    """

    def __init__(
        self,
        open_stream: OpenStream,
        metadata: tuple[tuple[str, str], ...] | None,
        may_be_gone: Callable[[ModelInferRequest], bool],
    ) -> None:
        self.is_open = True
        self._may_be_gone = may_be_gone
        self._live: dict[str, StreamedSequence] = {}
        self._to_send: asyncio.Queue[ModelInferRequest | None] = asyncio.Queue()
        self._call = open_stream(self._requests(), metadata=metadata)
        self._loop = asyncio.get_running_loop()
        self._abort_timer: asyncio.TimerHandle | None = None
        self._is_used = False
        self._loop.call_later(UNUSED_S, self._review)
        self.reading = self._loop.create_task(self._read())

    @property
    def has_room(self) -> bool:
        """Whether it carries fewer than `MAX_SEQUENCES`."""
        return len(self._live) < MAX_SEQUENCES

    def begin(self, request: ModelInferRequest) -> StreamedSequence:
        """Send a request; returns at once."""
        self._is_used = True
        sequence = self._live[request.id] = StreamedSequence(self, request)
        self._to_send.put_nowait(request)
        return sequence

    def abort(self, sequence: StreamedSequence) -> None:
        """Send the abort message of a sequence, unless it has ended, or its version may be gone."""
        request = sequence.request
        if request.id not in self._live:
            return
        sequence.is_aborted = True
        if not self._may_be_gone(request):
            again = ModelInferRequest()
            again.CopyFrom(request)
            again.parameters[ABORT].bool_param = True
            self._to_send.put_nowait(again)
        self._settle()

    def retire(self) -> None:
        """Take no more sequences; close when the present ones have ended."""
        self.is_open = False
        self._settle()

    def _review(self) -> None:
        """Retire if no sequence has begun since the last review, or an aborted one does not end."""
        if not self._is_used or any(sequence.is_aborted for sequence in self._live.values()):
            self.retire()
        elif self.is_open:
            self._is_used = False
            self._loop.call_later(UNUSED_S, self._review)

    def _settle(self) -> None:
        """Close the stream when it is unused; limit the time in which aborted sequences may end."""
        if not self._live and not self.is_open:
            self._to_send.put_nowait(None)
        elif self._all_aborted and self._abort_timer is None:
            self._abort_timer = self._loop.call_later(ABORT_TIMEOUT_S, self._give_up)

    @property
    def _all_aborted(self) -> bool:
        return bool(self._live) and all(s.is_aborted for s in self._live.values())

    def _give_up(self) -> None:
        self._abort_timer = None
        if self._all_aborted:
            self._call.cancel()

    async def _requests(self) -> AsyncIterator[ModelInferRequest]:
        while (request := await self._to_send.get()) is not None:
            yield request

    async def _read(self) -> None:
        """Dispatch responses until the stream ends; its failure is that of all its sequences."""
        failure: Exception | None = None
        try:
            async for response in self._call:
                self._dispatch(response)
        except asyncio.CancelledError:  # by `_give_up`, or at exit
            pass
        except Exception as error:  # raised by `responses`
            failure = error
        finally:
            for sequence in list(self._live.values()):
                self._end(sequence, failure)
            self.retire()
            if self._abort_timer is not None:
                self._abort_timer.cancel()

    def _dispatch(self, response: ModelStreamInferResponse) -> None:
        answer = response.infer_response
        sequence = self._live.get(answer.id)
        if sequence is None:  # the response to an abort message, after the end
            return
        if response.error_message:
            self._end(sequence, InferenceServerException(response.error_message))
            return
        if answer.outputs:
            sequence.put(answer)
        if answer.parameters["triton_final_response"].bool_param:
            self._end(sequence)

    def _end(self, sequence: StreamedSequence, failure: Exception | None = None) -> None:
        del self._live[sequence.request.id]
        sequence.put(failure)
        self._settle()


class StreamedSequence:
    """One sequence, from its request to its last response."""

    def __init__(self, stream: TritonStream, request: ModelInferRequest) -> None:
        self.request = request
        self.is_aborted = False
        self._stream = stream
        self._responses: asyncio.Queue[ModelInferResponse | Exception | None] = asyncio.Queue()

    async def responses(self) -> AsyncIterator[ModelInferResponse]:
        """Responses as they arrive, until the last.

        Raises:
            InferenceServerException: Triton refused the request.
            RpcError: the connection broke.
            Overloaded: too many responses were not read.
        """
        while (response := await self._responses.get()) is not None:
            if isinstance(response, Exception):
                raise response
            yield response

    def abort(self) -> None:
        """Abort the sequence, unless it has ended; returns at once."""
        self._stream.abort(self)

    def put(self, response: ModelInferResponse | Exception | None) -> None:
        """Add a response, an error, which is the last, or None, the end."""
        if self._responses.qsize() < MAX_UNREAD or not isinstance(response, ModelInferResponse):
            self._responses.put_nowait(response)
        elif not self.is_aborted:
            self._responses.put_nowait(Overloaded("the client reads too slowly", retry_after_s=1))
            self.abort()
