"""The gRPC client: the same methods, responses and exceptions as over HTTP."""

from __future__ import annotations

from collections.abc import Generator
from types import TracebackType
from typing import Any, Self

import grpc
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pydantic import ValidationError

from triptych import triptych_pb2 as pb
from triptych.base_client import Response
from triptych.client import DEFAULT_TIMEOUT_S
from triptych.conversion import from_proto, to_proto
from triptych.errors import (
    BY_STATUS,
    STATUS_OF_TYPE,
    ConnectionFailed,
    InvalidResponse,
    ServerError,
    Timeout,
    TriptychError,
)
from triptych.generated.methods import BlockingMethods
from triptych.http_exchange import headers, seconds
from triptych.operation import Operation
from triptych.retries import Retries
from triptych.triptych_pb2_grpc import TriptychStub
from triptych.validation import one_line

DEFAULT_TARGET = "127.0.0.1:8081"

# gRPC's own limit of 4 MiB is less than a batch of images; the gateway has its own limits.
_OPTIONS = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))

_HTTP_STATUS = {
    grpc.StatusCode.INVALID_ARGUMENT: 422,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.UNIMPLEMENTED: 404,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}


class GrpcClient(BlockingMethods):
    """A gateway over gRPC; one client may be used by several threads.

    ```python
    with GrpcClient("127.0.0.1:8081") as client:
        client.zero_shot("boat.png", labels=["a boat", "a horse"]).data[0].labels
    ```

    Args:
        target: `host:port` of the gateway's gRPC server.
        api_key: Sent as a bearer token.
        timeout: Seconds for one attempt, of a stream for all its chunks.
        retries: How often broken connections, RESOURCE_EXHAUSTED and UNAVAILABLE are retried.
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

    def health(self) -> bool:
        """Whether the gateway's process answers; without retries.

        Raises:
            TriptychError: Gateway unreachable, or not a Triptych gateway.
        """
        self._check()
        return True

    def ready(self) -> bool:
        """Whether every required model answers and the gateway is not draining; without retries.

        Raises:
            TriptychError: Gateway unreachable, or not a Triptych gateway.
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

    def send(self, operation: Operation[Response]) -> Response:
        """The response of an operation.

        Raises:
            TriptychError: See `triptych.errors`.
        """
        return self._retries.run(lambda: self._attempt(operation))

    def _attempt(self, operation: Operation[Response]) -> Response:
        given = operation.request
        request = pb.ListModelsRequest() if given is None else to_proto(given)
        method = getattr(self._stub, operation.method)
        try:
            message = method(request, timeout=self._timeout_s, metadata=self._metadata)
        except grpc.RpcError as failure:
            raise self._error(failure) from failure
        return self._parsed(message, operation)

    def stream(self, operation: Operation[Response]) -> Generator[Response, None, None]:
        """The chunks of a streaming operation; closing the generator aborts the request.

        Raises:
            TriptychError: See `triptych.errors`; nothing is retried after the first chunk.
        """
        assert operation.request is not None
        request, method = to_proto(operation.request), getattr(self._stub, operation.method)

        def begin() -> tuple[Any, Message | None]:
            stream = method(request, timeout=self._timeout_s, metadata=self._metadata)
            try:
                return stream, next(stream, None)
            except grpc.RpcError as failure:
                raise self._error(failure) from failure

        stream, message = self._retries.run(begin)
        try:
            while message is not None:
                yield self._parsed(message, operation)
                message = next(stream, None)
        except grpc.RpcError as failure:
            raise self._error(failure) from failure
        finally:
            stream.cancel()

    def _parsed(self, message: Message, operation: Operation[Response]) -> Response:
        try:
            return from_proto(message, operation.response)
        except ValidationError as invalid:
            raise InvalidResponse(
                f"{self._target} is not a Triptych gateway of this version: {one_line(invalid)}"
            ) from None

    def _check(self) -> int:
        """Status of the whole server (the service of no name) in the health protocol."""
        request = health_pb2.HealthCheckRequest()
        try:
            status = self._health.Check(request, timeout=self._timeout_s, metadata=self._metadata)
        except grpc.RpcError as failure:
            raise self._error(failure) from failure
        return int(status.status)

    def _error(self, failure: grpc.RpcError) -> TriptychError:
        """The exception of a call that ended with a status other than OK."""
        code, trailing = failure.code(), dict(failure.trailing_metadata() or ())
        body = _error_body(trailing.get("triptych-error-bin"))
        if body is None and code is grpc.StatusCode.UNAVAILABLE:
            return ConnectionFailed(f"cannot reach {self._target}: {failure.details()}")
        if body is None and code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return Timeout(f"no response from {self._target} within the timeout")
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
    """The error body from the trailing metadata; None for errors that are not the gateway's."""
    if serialized is None:
        return None
    try:
        return pb.ErrorBody.FromString(serialized)
    except DecodeError:
        return None
