"""Operations as HTTP requests, and HTTP responses as typed responses or exceptions; no I/O."""

from __future__ import annotations

import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Generic

import httpx
from httpx_sse import ServerSentEvent
from pydantic import BaseModel, ValidationError

from triptych.errors import (
    BY_STATUS,
    STATUS_OF_TYPE,
    ApiError,
    ConnectionFailed,
    InvalidArgument,
    InvalidResponse,
    ServerError,
    Timeout,
    TriptychError,
    one_line,
)
from triptych.messages import ErrorBody, ErrorResponse
from triptych.operation import Operation, Response_co

JSON = {"content-type": "application/json"}


def headers(api_key: str | None) -> dict[str, str]:
    """Headers of every request.

    Raises:
        InvalidArgument: The key has characters that a header cannot hold.
    """
    if api_key is None:
        return {}
    if not api_key.isascii() or not api_key.isprintable():
        raise InvalidArgument("the API key may only have printable ASCII characters")
    return {"authorization": f"Bearer {api_key}"}


def request(
    client: httpx.Client | httpx.AsyncClient, operation: Operation[BaseModel]
) -> httpx.Request:
    """The HTTP request of an operation; fields that are None are left out."""
    if operation.request is None:
        return client.build_request("GET", operation.path)
    if operation.verb in ("GET", "DELETE"):
        return client.build_request(operation.verb, operation.path)
    body = operation.request.model_dump_json(exclude_none=True)
    return client.build_request(operation.verb, operation.path, content=body.encode(), headers=JSON)


def parse(operation: Operation[Response_co], response: httpx.Response) -> Response_co:
    """The typed response of an operation.

    Raises:
        ApiError: The gateway answered with an error.
        InvalidResponse: The body is not the protocol's.
    """
    if not response.is_success:
        raise error(response)
    try:
        return operation.response.model_validate_json(response.content)
    except ValidationError as invalid:
        raise _invalid(response, invalid) from None


class EventReader(Generic[Response_co]):
    """Server-sent events of a stream as typed chunks.

    Args:
        response: Its HTTP response, of which only the headers have been read.
    """

    def __init__(self, operation: Operation[Response_co], response: httpx.Response) -> None:
        self._operation = operation
        self._response = response
        self._is_done = False

    def chunks(self, event: ServerSentEvent) -> Iterator[Response_co]:
        """The chunk of an event, where it has one.

        Raises:
            ApiError: The gateway failed in the middle of the stream.
            InvalidResponse: The event is not the protocol's.
        """
        if event.data == "[DONE]":
            self._is_done = True
        elif event.data:
            yield self._chunk(event)

    def _chunk(self, event: ServerSentEvent) -> Response_co:
        try:
            if event.event == "error":
                body = ErrorResponse.model_validate_json(event.data).error
                raise _failure(body, self._response)
            return self._operation.response.model_validate_json(event.data)
        except ValidationError as invalid:
            raise _invalid(self._response, invalid) from None

    def check_end(self) -> None:
        """Check that the stream was complete.

        Raises:
            ConnectionFailed: It ended before its last event.
        """
        if not self._is_done:
            raise ConnectionFailed(f"the stream from {self._response.url} broke off")


def check_stream(response: httpx.Response) -> None:
    """Check that a response is an event stream.

    Raises:
        InvalidResponse: It has another content type.
    """
    kind = response.headers.get("content-type", "")
    if not kind.startswith("text/event-stream"):
        raise InvalidResponse(
            f"{response.url} is not a Triptych gateway: it sent {kind or 'no content type'} "
            "instead of text/event-stream"
        )


def error(response: httpx.Response) -> ApiError:
    """The exception of a response without success, of a gateway or of any other server."""
    try:
        body = ErrorResponse.model_validate_json(response.content).error
    except ValidationError:  # from a proxy or another server
        reason = response.reason_phrase or "no reason given"
        message = f"{response.url} answered {response.status_code} {reason}"
        body = ErrorBody(type=f"http_{response.status_code}", message=message)
    return _failure(body, response, response.status_code)


def is_ready(response: httpx.Response) -> bool:
    """Whether a probe succeeded; 503 is the gateway's own "not ready".

    Raises:
        ApiError: Any other status.
    """
    if response.is_success or response.status_code == httpx.codes.SERVICE_UNAVAILABLE:
        return response.is_success
    raise error(response)


def transport_error(
    failure: httpx.TransportError, url: httpx.URL, proxy: str | None = None
) -> TriptychError:
    """The exception of a failure below HTTP.

    Args:
        proxy: The one that the request was sent to, which may have failed instead.
    """
    through = f" through {proxy}" if proxy else ""
    if isinstance(failure, httpx.TimeoutException):
        return Timeout(f"no response from {url}{through} within the timeout")
    reason = str(failure) or type(failure).__name__
    return ConnectionFailed(f"cannot reach {url}{through}: {reason}")


def seconds(retry_after: str | None) -> float | None:
    """Seconds of a `Retry-After` (RFC 9110, 10.2.3): number or date; None where it is neither."""
    if retry_after is None:
        return None
    try:
        return max(float(retry_after), 0.0)
    except ValueError:
        pass
    try:
        return max(parsedate_to_datetime(retry_after).timestamp() - time.time(), 0.0)
    except ValueError:
        return None


def _failure(body: ErrorBody, response: httpx.Response, status: int | None = None) -> ApiError:
    """The exception of an error body; in a stream the error's name determines the status."""
    if status is None:
        status = STATUS_OF_TYPE.get(body.type, httpx.codes.INTERNAL_SERVER_ERROR)
    return BY_STATUS.get(status, ServerError)(
        body.message,
        status=status,
        type=body.type,
        field=body.field,
        request_id=response.headers.get("x-request-id"),
        retry_after_s=seconds(response.headers.get("retry-after")),
    )


def _invalid(response: httpx.Response, invalid: ValidationError) -> InvalidResponse:
    return InvalidResponse(
        f"{response.url} is not a Triptych gateway of this version: {one_line(invalid)}"
    )
