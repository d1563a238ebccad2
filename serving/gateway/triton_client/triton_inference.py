"""A Triton server over gRPC: a stateless batch is one ModelInfer, sequences share streams.

Its errors become ours (`from_triton`).
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Any, TypeVar

import grpc
import numpy as np
from tritonclient.grpc import InferInput, InferRequestedOutput, InferResult
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.grpc.service_pb2 import ModelInferRequest, ModelInferResponse
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub
from tritonclient.utils import (
    InferenceServerException,
    deserialize_bytes_tensor,
    np_to_triton_dtype,
    serialize_byte_tensor,
    triton_to_np_dtype,
)

from inference.engine.codec import decode_chunk, decode_finished, encode_request
from inference.errors import DeadlineExceeded, InternalError, Overloaded, ServingError, Unavailable
from inference.generation import Finished, Overrides, TokenChunk
from inference.model_errors import decode_error
from inference.tasks.shared.model_calls import Array, GenerateCall, InferCall, Outputs
from serving.gateway.observability.background_tasks import BackgroundTasks
from serving.gateway.observability.trace_context import metadata
from serving.gateway.triton_client.stream_pool import StreamPool

GONE = "gone"
"""The incarnation of a model that a server does not have."""
_INCARNATION = "incarnation"
_CLOSE_TIMEOUT_S = 0.5
_READ_S = 5.0
_LIVENESS_S = 2.0
_CHANNEL = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # gRPC would wait for up to two minutes before it connects to a restarted server.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    # A server that returns under another address is found by resolving its name again, which gRPC
    # would do every 30 s at most.
    ("grpc.dns_min_time_between_resolutions_ms", 500),
    # Proxies of the user's environment (http_proxy) do not reach this machine's servers.
    ("grpc.enable_http_proxy", 0),
)
POLL_S = 0.25
UNWATCHED_S = 0.1
"""Calls that end within this time are not watched; no healing is as fast."""

log = logging.getLogger(__name__)

T = TypeVar("T")


class Liveness(Enum):
    """What a server's health endpoint returned."""

    LIVE = auto()
    STOPPING = auto()
    """It finishes what it has accepted and refuses new calls."""
    UNREACHABLE = auto()


class TritonInference:
    """A Triton server over gRPC. Made and used on one event loop.

    A cancelled coroutine ends the work that it waits for.

    Args:
        address: HOST:PORT of its gRPC endpoint.
        tasks: Runs what follows its models.
    """

    def __init__(self, address: str, tasks: BackgroundTasks | None = None) -> None:
        self._client = InferenceServerClient(address, channel_args=_CHANNEL)
        self._channel = grpc.aio.insecure_channel(address, options=_CHANNEL)
        self._streams = StreamPool(GRPCInferenceServiceStub(self._channel).ModelStreamInfer)
        self._restarts = RestartWatcher(self.incarnation, tasks=tasks)
        self._prefix = f"{secrets.token_hex(8)}-"
        self._count = 0
        """Sequences so far; with the prefix their ids, unique among all gateways of a server."""

    async def generate(self, call: GenerateCall, timeout_s: float) -> Finished:
        """One sequence's hypotheses, aborted when the caller is cancelled: that frees its slots.

        Raises:
            ServingError: the model refused the call, or did not respond.
        """
        work = self._generate(call, timeout_s, call.options, lambda tokens: None)
        return await self._restarts.guard(call.model, work)

    async def stream(
        self, call: GenerateCall, timeout_s: float
    ) -> AsyncGenerator[TokenChunk | Finished, None]:
        """One sequence's tokens as they arrive; the last item is the whole result.

        Closing the iterator ends the work.

        Raises:
            ServingError: the model refused the call, or did not respond.
        """
        arrived: asyncio.Queue[TokenChunk | None] = asyncio.Queue()
        options = call.options.model_copy(update={"stream": True})
        work = self._generate(call, timeout_s, options, arrived.put_nowait)
        running = asyncio.ensure_future(self._restarts.guard(call.model, work))
        running.add_done_callback(lambda _: arrived.put_nowait(None))
        try:
            while (tokens := await arrived.get()) is not None:
                yield tokens
            yield running.result()
        finally:
            running.cancel()
            await asyncio.wait((running,))
            if not running.cancelled():
                running.exception()  # raised above, or the reader has closed the stream

    async def infer(self, call: InferCall, timeout_s: float) -> Outputs:
        """One batch's outputs; Triton batches it with others of equal shape.

        Raises:
            ServingError: the model refused the call, or did not respond.
        """
        return await self._restarts.guard(call.model, self._infer(call, timeout_s))

    async def is_ready(self, model: str, version: int) -> bool:
        """Triton's readiness of the model; False if Triton is unreachable."""
        try:
            ready = await self._client.is_model_ready(model, str(version), client_timeout=_READ_S)
        except InferenceServerException:
            return False
        return bool(ready)

    async def served_version(self, model: str) -> int | None:
        """The version that new requests go to; None if none is loaded, or if that is unknown.

        It is the ready one whose version policy is the longest (`triton.control.VersionPolicy`).

        Several are ready for a while after a switch; without a supervisor the newest is served.
        Sequences of the others have streams of their own from then on.
        """
        try:
            metadata = await self._client.get_model_metadata(model, client_timeout=_READ_S)
            ready = [int(version) for version in metadata.versions]
            if not ready:
                return None
            served = ready[0]
            if len(ready) > 1:
                lengths = {version: await self._policy_length(model, version) for version in ready}
                served = max(ready, key=lambda version: (lengths[version], version))
        except InferenceServerException:
            return None
        self._streams.note_served(model, served)
        return served

    async def _policy_length(self, model: str, version: int) -> int:
        response = await self._client.get_model_config(model, str(version), client_timeout=_READ_S)
        return len(response.config.version_policy.specific.versions)

    async def close(self) -> None:
        """Wait for aborted sequences to end, then close the channels."""
        await self._streams.close(_CLOSE_TIMEOUT_S)
        await self._channel.close()
        await self._client.close()

    async def _generate(
        self,
        call: GenerateCall,
        timeout_s: float,
        options: Overrides,
        on_tokens: Callable[[TokenChunk], None],
    ) -> Finished:
        deadline_ms = max(1, int(timeout_s * 1000))
        options = options.model_copy(update={"deadline_ms": deadline_ms})
        inputs = encode_request(call.inputs, options)
        self._count += 1
        request_id = f"{self._prefix}{self._count}"
        request = _stream_request(call.model, call.version, request_id, inputs)
        sequence = self._streams.begin(request, metadata())
        try:
            async with asyncio.timeout(timeout_s):
                return await _collect(sequence.responses(), call.model, on_tokens)
        except TimeoutError:
            raise DeadlineExceeded(f"{call.model} did not finish in time") from None
        except (InferenceServerException, grpc.RpcError) as error:
            raise from_triton(error, call.model) from error
        finally:
            sequence.abort()

    async def _infer(self, call: InferCall, timeout_s: float) -> Outputs:
        inputs = [_infer_input(name, array) for name, array in call.inputs.items()]
        try:
            result = await self._client.infer(
                call.model,
                inputs,
                model_version=str(call.version),
                outputs=[InferRequestedOutput(name) for name in call.outputs],
                headers=metadata(),
                client_timeout=timeout_s,
            )
        except InferenceServerException as error:
            raise from_triton(error, call.model) from error
        return {role: _output_of(result, name, call.model) for name, role in call.outputs.items()}

    async def liveness(self) -> Liveness:
        """Triton's liveness; while it stops its models are unloaded, and finish what they have."""
        try:
            is_live = await self._client.is_server_live(client_timeout=_LIVENESS_S)
        except InferenceServerException as error:
            return Liveness.STOPPING if is_shutting_down(error) else Liveness.UNREACHABLE
        return Liveness.LIVE if is_live else Liveness.STOPPING

    def end_calls(self) -> None:
        """End all calls as lost: the server does not respond any more."""
        self._restarts.end_all()

    async def incarnation(self, model: str) -> str | None:
        """How often the model was healed, as `triptych triton` writes it; None if unknown."""
        try:
            answer = await self._client.get_model_config(model, client_timeout=_READ_S)
        except InferenceServerException as error:
            is_unloaded = error.status() == "StatusCode.NOT_FOUND"
            is_live = is_unloaded and await self.liveness() is Liveness.LIVE
            return GONE if is_live else None
        parameters = answer.config.parameters
        if _INCARNATION not in parameters:
            return None
        incarnation = str(parameters[_INCARNATION].string_value)
        self._restarts.note(model, incarnation)
        return incarnation


class RestartWatcher:
    """Ends the calls that a dead model process will never answer. Used on one event loop.

    After a model's process is killed, calls that it had accepted hang, while Triton still reports
    the model as ready. `triptych triton` unloads the model at once, loads it again and increments
    the incarnation in its configuration. So the models that have running calls are polled; if one
    is unloaded or its incarnation has changed, the calls that were running are ended as lost.

    Args:
        read: A model's current incarnation, GONE if it is not loaded; None if unknown.
        poll_s: Interval for a model with running calls; others are not polled.
        tasks: Runs the polls.
    """

    def __init__(
        self,
        read: Callable[[str], Awaitable[str | None]],
        poll_s: float = POLL_S,
        tasks: BackgroundTasks | None = None,
    ) -> None:
        self._read = read
        self._tasks = tasks or BackgroundTasks()
        self._poll_s = poll_s
        self._latest: dict[str, str] = {}
        self._running: defaultdict[str, dict[asyncio.Task[Any], str | None]] = defaultdict(dict)
        """Tasks, and the incarnation that was the latest known one when they began."""
        self._watchers: dict[str, asyncio.Task[None] | asyncio.TimerHandle] = {}
        self._aborted: set[asyncio.Task[Any]] = set()

    def note(self, model: str, incarnation: str) -> None:
        """Takes a reading: calls that begin from now on are of that incarnation or a later one."""
        self._latest[model] = incarnation

    async def guard(self, model: str, work: Awaitable[T]) -> T:
        """The work's result; it runs in the current task.

        Raises:
            Unavailable: the model's process was replaced meanwhile.
        """
        task = asyncio.current_task()
        assert task is not None, "calls are made by tasks"
        running = self._running[model]
        running[task] = self._latest.get(model)
        if model not in self._watchers:
            unwatched_s = min(UNWATCHED_S, self._poll_s)
            self._watchers[model] = task.get_loop().call_later(
                unwatched_s, self._start_watching, model
            )
        try:
            return await work
        except asyncio.CancelledError:
            if task not in self._aborted or task.cancelling() > 1:  # by others, too
                raise
            lost = Unavailable(f"{model} was restarted: try again", retry_after_s=1)
            lost.is_loss = True
            raise lost from None
        finally:
            running.pop(task, None)
            if task in self._aborted:
                self._aborted.discard(task)
                task.uncancel()
            if not running and (watcher := self._watchers.pop(model, None)):
                watcher.cancel()

    def end_all(self) -> None:
        """End the calls of all models: their server does not respond."""
        for model in list(self._running):
            self._abort(model)

    def _start_watching(self, model: str) -> None:
        self._watchers[model] = self._tasks.start(
            "watching of restarts", lambda: self._watch(model)
        )

    async def _watch(self, model: str) -> None:
        before = await self._read(model)
        while True:
            if before == GONE:
                self._abort(model)
            await asyncio.sleep(self._poll_s)
            now = await self._read(model) or before
            if now != before and before not in (None, GONE):
                log.warning(
                    "model was restarted: its running calls are ended", extra={"model": model}
                )
                self._abort(model, now)
            before = now

    def _abort(self, model: str, now: str | None = None) -> None:
        """Ends the calls of a model, but those that began under this incarnation."""
        running = self._running[model].items()
        lost = {task for task, began in running if now in (None, GONE) or began != now}
        lost -= self._aborted
        self._aborted |= lost
        for task in lost:
            task.cancel()


async def _collect(
    responses: AsyncIterator[ModelInferResponse],
    model: str,
    on_tokens: Callable[[TokenChunk], None],
) -> Finished:
    """The response that holds the hypotheses; it is the last."""
    last: dict[str, Array] | None = None
    async for response in responses:
        last = _arrays_of(response)
        chunk = decode_chunk(last)
        if chunk.token_ids:
            on_tokens(chunk)
    if last is None:
        # What a dead generator's stream looks like once the server has been healed or stopped.
        lost = Unavailable(f"{model} ended without a response: try again", retry_after_s=1)
        lost.is_loss = True
        raise lost
    return decode_finished(last)


def _arrays_of(response: ModelInferResponse) -> dict[str, Array]:
    """The outputs of a generator: numbers and short strings, always as raw bytes."""
    outputs = zip(response.outputs, response.raw_output_contents, strict=True)
    return {output.name: _array(output.datatype, output.shape, raw) for output, raw in outputs}


def _array(datatype: str, shape: Sequence[int], raw: bytes) -> Array:
    if datatype == "BYTES":
        found: Array = deserialize_bytes_tensor(raw)
    else:
        found = np.frombuffer(raw, triton_to_np_dtype(datatype))
    return found.reshape(shape)


def _stream_request(
    model: str, version: int, request_id: str, inputs: Mapping[str, Array]
) -> ModelInferRequest:
    """The request of a sequence; Triton marks its end even where that has no other content."""
    request = ModelInferRequest(model_name=model, model_version=str(version), id=request_id)
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    for name, array in inputs.items():
        datatype = np_to_triton_dtype(array.dtype)
        request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        raw = serialize_byte_tensor(array).item() if datatype == "BYTES" else array.tobytes()
        request.raw_input_contents.append(raw)
    return request


def _infer_input(name: str, array: Array) -> InferInput:
    """An input of a stateless call."""
    array = array[:, None] if array.ndim == 1 else array  # Triton requires two dimensions
    tensor = InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    tensor.set_data_from_numpy(np.ascontiguousarray(array))
    return tensor


def _output_of(result: InferResult, name: str, model: str) -> Array:
    """An output of a stateless call.

    Raises:
        InternalError: the response does not have it.
    """
    array: Array | None = result.as_numpy(name)
    if array is None:
        raise InternalError(f"{model} answered without {name}: export it again")
    return array


RETRY_AFTER_S = 1.0

# Messages of Triton (core/src: scheduler_utils.cc, model.cc, dynamic_batch_scheduler.cc):
# their only status is UNAVAILABLE.
_QUEUE_FULL = re.compile(r"exceeds maximum queue size", re.IGNORECASE)
# python_backend/src: its process was killed; `triptych triton` replaces it within a second.
_DEAD_STUB = re.compile(r"Stub process .* is not healthy", re.IGNORECASE)
# core/src/model_repository_manager: unloaded, which `triptych triton` does to restart it.
_NOT_LOADED = re.compile(r"Request for unknown model", re.IGNORECASE)
# grpc.aio: a request was written to a connection that had just broken; its status is INTERNAL.
_CONNECTION_LOST = re.compile(r"Internal error from Core")
_NO_CONNECTION = re.compile(r"failed to connect to", re.IGNORECASE)
# core/src (server.cc, dynamic_batch_scheduler.cc): of new requests, and of the health endpoint.
_SHUTTING_DOWN = re.compile(r"\bserver (?:not ready|exiting|is stopping)", re.IGNORECASE)
_QUEUE_TIMEOUT = re.compile(r"request timeout expired|timeout expired", re.IGNORECASE)


def from_triton(error: Exception, model: str) -> ServingError:
    """The error of a response for one of Triton's.

    An error of our own backends, `<wire name>: <message>`, keeps its type and message; of others
    and of internal errors only the type is returned, and the log has the message.
    """
    text, status = _text(error), _status(error)
    own = decode_error(text)
    if own is not None and not isinstance(own, InternalError):
        if isinstance(own, Overloaded | Unavailable):
            own.retry_after_s = RETRY_AFTER_S
        return own
    if _QUEUE_FULL.search(text):
        return Overloaded(f"{model} is busy: try again", retry_after_s=RETRY_AFTER_S)
    if status == "DEADLINE_EXCEEDED" or _QUEUE_TIMEOUT.search(text):
        return DeadlineExceeded(f"{model} did not finish in time")
    expected = (_DEAD_STUB, _NOT_LOADED, _CONNECTION_LOST, _SHUTTING_DOWN)
    is_restarting = any(pattern.search(text) for pattern in expected)
    level = (
        logging.DEBUG if is_restarting else logging.WARNING
    )  # expected during a restart, for many requests
    log.log(level, "triton refused model=%s status=%s text=%s", model, status, text)
    if is_restarting or status in {"UNAVAILABLE", "NOT_FOUND", "CANCELLED"}:
        unavailable = Unavailable(f"{model} is not up: try again", retry_after_s=RETRY_AFTER_S)
        unavailable.is_not_loaded = bool(_NOT_LOADED.search(text))
        unavailable.is_unnoticed = bool(_DEAD_STUB.search(text))
        refusals = (_NOT_LOADED, _NO_CONNECTION, _SHUTTING_DOWN)
        unavailable.is_loss = not any(pattern.search(text) for pattern in refusals)
        return unavailable
    return InternalError(f"{model} failed: the gateway's log has the cause")


def _text(error: Exception) -> str:
    if isinstance(error, InferenceServerException):
        return error.message() or ""
    return (error.details() or "") if isinstance(error, grpc.aio.AioRpcError) else str(error)


def _status(error: Exception) -> str:
    """Name of the gRPC status, empty where there is none."""
    if isinstance(error, InferenceServerException):
        return (error.status() or "").removeprefix("StatusCode.")
    return str(error.code().name) if isinstance(error, grpc.aio.AioRpcError) else ""


def is_shutting_down(error: Exception) -> bool:
    """Whether Triton has refused a call because it shuts down."""
    return bool(_SHUTTING_DOWN.search(_text(error)))
