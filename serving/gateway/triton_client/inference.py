"""Calls to Triton: a stateless batch is one ModelInfer, sequences share streams (`stream_pool`).

The rest of the gateway depends on the protocol `Inference` only; tests have one in memory.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from enum import Enum, auto
from typing import Protocol

import grpc
from tritonclient.grpc import InferRequestedOutput
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.grpc.service_pb2 import ModelInferResponse
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub
from tritonclient.utils import InferenceServerException

from inference.engine.codec import decode_chunk, decode_finished, encode_request
from inference.errors import DeadlineExceeded, Unavailable
from inference.generation import Overrides
from inference.sequences import Finished, TokenChunk
from inference.tasks.shared.model_calls import Array, GenerateCall, InferCall, Outputs
from serving.gateway.observability.trace_context import metadata
from serving.gateway.triton_client.restart_watcher import GONE, RestartWatcher
from serving.gateway.triton_client.stream_pool import StreamPool
from serving.gateway.triton_client.tensors import (
    arrays_of,
    infer_input,
    output_of,
    stream_request,
)
from serving.gateway.triton_client.triton_errors import from_triton, is_shutting_down

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
)


class Inference(Protocol):
    """Runs the models. A cancelled coroutine ends the work that it waits for."""

    async def generate(self, call: GenerateCall, timeout_s: float) -> Finished:
        """One sequence's hypotheses.

        Raises:
            ServingError: the model refused the call, or did not respond.
        """
        ...

    def stream(
        self, call: GenerateCall, timeout_s: float
    ) -> AsyncGenerator[TokenChunk | Finished, None]:
        """One sequence's tokens as they are generated; the last item is the whole result.

        Closing the iterator ends the work.

        Raises:
            ServingError: the model refused the call, or did not respond.
        """
        ...

    async def infer(self, call: InferCall, timeout_s: float) -> Outputs:
        """One batch's outputs.

        Raises:
            ServingError: the model refused the call, or did not respond.
        """
        ...

    async def is_ready(self, model: str, version: int) -> bool:
        """Whether that version is loaded."""
        ...

    async def served_version(self, model: str) -> int | None:
        """The version that new requests go to; None if none is loaded, or if that is unknown."""
        ...

    def replicas(self, model: str, version: int) -> int:
        """Servers that calls of that version go to, at least 1."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


class Liveness(Enum):
    """What a server's health endpoint returned."""

    LIVE = auto()
    STOPPING = auto()
    """It finishes what it has accepted and refuses new calls."""
    UNREACHABLE = auto()


class Server(Inference, Protocol):
    """One server of several."""

    async def incarnation(self, model: str) -> str | None:
        """How often the model was healed, GONE if it is not loaded; None if that is unknown."""
        ...

    async def liveness(self) -> Liveness:
        """Whether the server responds."""
        ...

    def end_calls(self) -> None:
        """End all calls as lost: the server does not respond any more."""
        ...


class TritonInference:
    """A Triton server over gRPC. Made and used on one event loop.

    Args:
        address: HOST:PORT of its gRPC endpoint.
    """

    def __init__(self, address: str) -> None:
        self._client = InferenceServerClient(address, channel_args=_CHANNEL)
        self._channel = grpc.aio.insecure_channel(address, options=_CHANNEL)
        self._streams = StreamPool(GRPCInferenceServiceStub(self._channel).ModelStreamInfer)
        self._restarts = RestartWatcher(self.incarnation)
        self._prefix = f"{secrets.token_hex(8)}-"
        self._count = 0
        """Sequences so far; with the prefix their ids, unique among all gateways of a server."""

    async def generate(self, call: GenerateCall, timeout_s: float) -> Finished:
        """One sequence, aborted when the caller is cancelled: that frees its slots."""
        work = self._generate(call, timeout_s, call.options, lambda tokens: None)
        return await self._restarts.guarded(call.model, work)

    async def stream(
        self, call: GenerateCall, timeout_s: float
    ) -> AsyncGenerator[TokenChunk | Finished, None]:
        """One sequence's tokens as they arrive."""
        arrived: asyncio.Queue[TokenChunk | None] = asyncio.Queue()
        options = call.options.model_copy(update={"stream": True})
        work = self._generate(call, timeout_s, options, arrived.put_nowait)
        running = asyncio.ensure_future(self._restarts.guarded(call.model, work))
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
        """One unary request; Triton batches it with others of equal shape."""
        return await self._restarts.guarded(call.model, self._infer(call, timeout_s))

    async def is_ready(self, model: str, version: int) -> bool:
        """Triton's readiness of the model; False if Triton is unreachable."""
        try:
            ready = await self._client.is_model_ready(model, str(version), client_timeout=_READ_S)
        except InferenceServerException:
            return False
        return bool(ready)

    async def served_version(self, model: str) -> int | None:
        """The ready version whose version policy is the longest (`triton.control.VersionPolicy`).

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
        request = stream_request(call.model, call.version, request_id, inputs)
        sequence = self._streams.begin(request, metadata())
        try:
            async with asyncio.timeout(timeout_s):
                return await _collected(sequence.responses(), call.model, on_tokens)
        except TimeoutError:
            raise DeadlineExceeded(f"{call.model} did not finish in time") from None
        except (InferenceServerException, grpc.RpcError) as error:
            raise from_triton(error, call.model) from error
        finally:
            sequence.abort()

    async def _infer(self, call: InferCall, timeout_s: float) -> Outputs:
        inputs = [infer_input(name, array) for name, array in call.inputs.items()]
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
        return {role: output_of(result, name, call.model) for name, role in call.outputs.items()}

    async def liveness(self) -> Liveness:
        """Triton's liveness; while it stops its models are unloaded, and finish what they have."""
        try:
            is_live = await self._client.is_server_live(client_timeout=_LIVENESS_S)
        except InferenceServerException as error:
            return Liveness.STOPPING if is_shutting_down(error) else Liveness.UNREACHABLE
        return Liveness.LIVE if is_live else Liveness.STOPPING

    def replicas(self, model: str, version: int) -> int:
        """One."""
        return 1

    def end_calls(self) -> None:
        """End all calls as lost."""
        self._restarts.end_all()

    async def incarnation(self, model: str) -> str | None:
        """How often the model was healed, as `triptych triton` writes it."""
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


async def _collected(
    responses: AsyncIterator[ModelInferResponse],
    model: str,
    on_tokens: Callable[[TokenChunk], None],
) -> Finished:
    """The response that holds the hypotheses; it is the last."""
    last: dict[str, Array] | None = None
    async for response in responses:
        last = arrays_of(response)
        chunk = decode_chunk(last)
        if chunk.token_ids:
            on_tokens(chunk)
    if last is None:
        # What a dead generator's stream looks like once the server has been healed or stopped.
        lost = Unavailable(f"{model} ended without a response: try again", retry_after_s=1)
        lost.is_loss = True
        raise lost
    return decode_finished(last)
