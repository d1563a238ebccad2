"""gRPC messages of operations, and typed responses or exceptions of what is received; no I/O."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health_pb2
from pydantic import ValidationError

from triptych import triptych_pb2 as pb
from triptych.client.base_client import Response
from triptych.client.conversion import from_proto, to_proto
from triptych.client.http_exchange import seconds
from triptych.errors import (
    BY_STATUS,
    STATUS_OF_TYPE,
    ConnectionFailed,
    InvalidResponse,
    ServerError,
    Timeout,
    TriptychError,
    one_line,
)
from triptych.operation import Operation

# gRPC's own limit of 4 MiB is less than a batch of images; the gateway has its own limits.
OPTIONS = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))
HEALTH_REQUEST = health_pb2.HealthCheckRequest()
"""Asks the health protocol about the whole server: the service of no name."""
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


def message_of(operation: Operation[Any]) -> Message:
    """The protobuf message of an operation's request."""
    return pb.ListModelsRequest() if operation.request is None else to_proto(operation.request)


def is_serving(response: Any) -> bool:
    """Whether the health protocol calls the server ready."""
    return bool(response.status == health_pb2.HealthCheckResponse.SERVING)


def parse(message: Message, operation: Operation[Response], target: str) -> Response:
    """The typed response of an operation, or a chunk of its stream.

    Raises:
        InvalidResponse: The message is not the protocol's.
    """
    try:
        return from_proto(message, operation.response)
    except ValidationError as invalid:
        raise InvalidResponse(
            f"{target} is not a Triptych gateway of this version: {one_line(invalid)}"
        ) from None


@contextmanager
def errors(target: str) -> Iterator[None]:
    """Raises the exceptions of calls that end with a status other than OK."""
    try:
        yield
    except grpc.RpcError as failure:
        raise _error(failure, target) from failure


def _error(failure: grpc.RpcError, target: str) -> TriptychError:
    """The exception of a call that ended with a status other than OK."""
    code, trailing = failure.code(), dict(list(failure.trailing_metadata() or ()))
    body = _error_body(trailing.get("triptych-error-bin"))
    if body is None and code is grpc.StatusCode.UNAVAILABLE:
        return ConnectionFailed(f"cannot reach {target}: {failure.details()}")
    if body is None and code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Timeout(f"no response from {target} within the timeout")
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
