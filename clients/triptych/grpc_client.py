"""The gRPC client: the same verbs, answers and exceptions as over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import grpc
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pydantic import ValidationError

from triptych import calls, generation
from triptych import triptych_pb2 as pb
from triptych.calls import Answer_co, Call
from triptych.client import DEFAULT_TIMEOUT_S
from triptych.conversion import from_proto, to_proto
from triptych.errors import (
    BY_STATUS,
    STATUS_OF_TYPE,
    ConnectionFailed,
    InvalidAnswer,
    ServerError,
    Timeout,
    TriptychError,
)
from triptych.http_exchange import headers, seconds
from triptych.methods import blocking, iterating
from triptych.retries import Retries
from triptych.triptych_pb2_grpc import TriptychStub

DEFAULT_TARGET = "127.0.0.1:8081"

# gRPC's own cap of 4 MiB is less than a batch of pictures; the gateway has its own limits.
_OPTIONS = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))

_HTTP_STATUS = {
    grpc.StatusCode.INVALID_ARGUMENT: 422,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.UNIMPLEMENTED: 404,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}


class GrpcClient:
    """A gateway over gRPC; one client may be used by several threads.

    ```python
    with GrpcClient("127.0.0.1:8081") as client:
        client.zero_shot("boat.png", labels=["a boat", "a horse"]).data[0].labels
    ```

    Args:
        target: `host:port` of the gateway's gRPC side.
        api_key: Sent as a bearer token.
        timeout: Seconds for one attempt.
        retries: What to do about broken connections, RESOURCE_EXHAUSTED and UNAVAILABLE.
        credentials: For TLS, e.g. `grpc.ssl_channel_credentials()`; plain text without.
    """

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        api_key: str | None = None,
        timeout: float | None = DEFAULT_TIMEOUT_S,
        retries: Retries | None = None,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        self._target = target
        self._timeout_s = timeout
        self._retries = retries or Retries()
        self._metadata = tuple(headers(api_key).items())
        if credentials is None:
            self._channel = grpc.insecure_channel(target, options=_OPTIONS)
        else:
            self._channel = grpc.secure_channel(target, credentials, options=_OPTIONS)
        self._stub = TriptychStub(self._channel)  # type: ignore[no-untyped-call]
        self._health = health_pb2_grpc.HealthStub(self._channel)

    translate = blocking(calls.translate)
    caption = blocking(calls.caption)
    zero_shot = blocking(calls.zero_shot)
    generate = blocking(generation.generate)
    translate_stream = iterating(calls.translate_stream)
    caption_stream = iterating(calls.caption_stream)
    generate_stream = iterating(generation.generate_stream)
    models = blocking(calls.models)

    def health(self) -> bool:
        """Whether the gateway's process answers; asked once.

        Raises:
            TriptychError: Nobody is there, or somebody else.
        """
        self._check()
        return True

    def ready(self) -> bool:
        """Whether every required model answers and the gateway is not draining; asked once.

        Raises:
            TriptychError: Nobody is there, or somebody else.
        """
        return bool(self._check() == health_pb2.HealthCheckResponse.SERVING)

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _send(self, call: Call[Answer_co]) -> Answer_co:
        return self._retries.until_answered(lambda: self._attempt(call))

    def _attempt(self, call: Call[Answer_co]) -> Answer_co:
        request = pb.ListModelsRequest() if call.request is None else to_proto(call.request)
        method = getattr(self._stub, call.verb)
        try:
            message = method(request, timeout=self._timeout_s, metadata=self._metadata)
        except grpc.RpcError as failure:
            raise self._error(failure) from failure
        return self._read(message, call)

    def _stream(self, call: Call[Answer_co]) -> Iterator[Answer_co]:
        """The answers of a call; closing the iterator ends it."""
        assert call.request is not None
        request, method = to_proto(call.request), getattr(self._stub, call.verb)

        def begin() -> tuple[Any, Message | None]:
            stream = method(request, timeout=self._timeout_s, metadata=self._metadata)
            try:
                return stream, next(stream, None)
            except grpc.RpcError as failure:
                raise self._error(failure) from failure

        stream, message = self._retries.until_answered(begin)
        try:
            while message is not None:
                yield self._read(message, call)
                message = next(stream, None)
        except grpc.RpcError as failure:
            raise self._error(failure) from failure
        finally:
            stream.cancel()

    def _read(self, message: Message, call: Call[Answer_co]) -> Answer_co:
        try:
            return from_proto(message, call.answer)
        except ValidationError as invalid:
            first = invalid.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            raise InvalidAnswer(
                f"{self._target} does not answer as Triptych does: {place}: {first['msg']}"
            ) from None

    def _check(self) -> int:
        """The health service's word on the whole server (the service of no name)."""
        request = health_pb2.HealthCheckRequest()
        try:
            answer = self._health.Check(request, timeout=self._timeout_s, metadata=self._metadata)
        except grpc.RpcError as failure:
            raise self._error(failure) from failure
        return int(answer.status)

    def _error(self, failure: grpc.RpcError) -> TriptychError:
        """Our exception of a call that ended with a status other than OK."""
        code, trailing = failure.code(), dict(failure.trailing_metadata() or ())
        body = _error_body(trailing.get("triptych-error-bin"))
        if body is None and code is grpc.StatusCode.UNAVAILABLE:
            return ConnectionFailed(f"cannot reach {self._target}: {failure.details()}")
        if body is None and code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return Timeout(f"no answer from {self._target} in time")
        if body is None and "larger than max" in failure.details():  # gRPC's own limit
            body = pb.ErrorBody(type="payload_too_large", message=failure.details())
        if body is None:
            body = pb.ErrorBody(type=f"grpc_{code.name.lower()}", message=failure.details())
        status = STATUS_OF_TYPE.get(body.type, _HTTP_STATUS.get(code, 500))
        return BY_STATUS.get(status, ServerError)(
            body.message,
            status=status,
            type=body.type,
            field=body.field if body.HasField("field") else None,
            request_id=trailing.get("x-request-id"),
            retry_after_s=seconds(trailing.get("retry-after")),
        )


def _error_body(serialized: bytes | None) -> pb.ErrorBody | None:
    """What the gateway says of an error; None for errors that are not the gateway's."""
    if serialized is None:
        return None
    try:
        return pb.ErrorBody.FromString(serialized)
    except DecodeError:
        return None
