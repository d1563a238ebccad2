"""HTTP without I/O: what a call looks like as a request, and what an answer means."""

from __future__ import annotations

import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Generic

import httpx
from pydantic import BaseModel, ValidationError

from triptych.calls import Answer_co, Call
from triptych.errors import (
    BY_STATUS,
    STATUS_OF_TYPE,
    ApiError,
    ConnectionFailed,
    InvalidAnswer,
    InvalidArgument,
    ServerError,
    Timeout,
    TriptychError,
)
from triptych.messages import ErrorBody, ErrorResponse

JSON = {"content-type": "application/json"}


def headers(api_key: str | None) -> dict[str, str]:
    """What every request carries.

    Raises:
        InvalidArgument: A key that no header can hold.
    """
    if api_key is None:
        return {}
    if not api_key.isascii() or not api_key.isprintable():
        raise InvalidArgument("an API key has printable ASCII characters only")
    return {"authorization": f"Bearer {api_key}"}


def request(client: httpx.Client | httpx.AsyncClient, call: Call[BaseModel]) -> httpx.Request:
    """The HTTP request of a call; what is `None` is left out."""
    if call.request is None:
        return client.build_request("GET", call.path)
    body = call.request.model_dump_json(exclude_none=True)
    return client.build_request("POST", call.path, content=body.encode(), headers=JSON)


def answer(call: Call[Answer_co], response: httpx.Response) -> Answer_co:
    """The typed answer of a call.

    Raises:
        ApiError: The gateway answered with an error.
        InvalidAnswer: The answer is not the protocol's.
    """
    if not response.is_success:
        raise error(response)
    try:
        return call.answer.model_validate_json(response.content)
    except ValidationError as invalid:
        raise _not_ours(response, invalid) from None


class Events(Generic[Answer_co]):
    """What the bytes of a stream mean (server-sent events).

    Lines are split here because httpx also splits where only Unicode breaks lines, within texts.

    Args:
        call: Whose answer this is.
        response: Its headers.

    Raises:
        InvalidAnswer: It is no stream.
    """

    def __init__(self, call: Call[Answer_co], response: httpx.Response) -> None:
        self._call = call
        self._response = response
        self._line = b""
        self._is_error = False
        self._is_done = False
        kind = response.headers.get("content-type", "")
        if not kind.startswith("text/event-stream"):
            raise InvalidAnswer(
                f"{response.url} does not answer as Triptych does: it has sent {kind or 'nothing'}"
                " where a stream was asked for"
            )

    def read(self, data: bytes) -> Iterator[Answer_co]:
        """The pieces that are complete with these bytes.

        Raises:
            ApiError: The gateway failed in the middle.
            InvalidAnswer: The stream is not the protocol's.
        """
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            name, _, value = line.partition(b":")
            if name == b"event":
                self._is_error = value.strip() == b"error"
            elif name == b"data" and value.strip() == b"[DONE]":
                self._is_done = True
            elif name == b"data":
                yield self._piece(value)

    def _piece(self, data: bytes) -> Answer_co:
        try:
            if self._is_error:
                raise _failure(ErrorResponse.model_validate_json(data).error, self._response)
            return self._call.answer.model_validate_json(data)
        except ValidationError as invalid:
            raise _not_ours(self._response, invalid) from None

    def check_end(self) -> None:
        """Raises ConnectionFailed where the stream ended before its end."""
        if not self._is_done:
            raise ConnectionFailed(f"the stream from {self._response.url} broke off")


def error(response: httpx.Response) -> ApiError:
    """The exception of an answer that is not a success, whoever sent it."""
    try:
        body = ErrorResponse.model_validate_json(response.content).error
    except ValidationError:  # a proxy, or another server altogether
        reason = response.reason_phrase or "no reason given"
        message = f"{response.url} answered {response.status_code} {reason}"
        body = ErrorBody(type=f"http_{response.status_code}", message=message)
    return _failure(body, response, response.status_code)


def is_ready(response: httpx.Response) -> bool:
    """Whether `/ready` says yes; 503 is its no.

    Raises:
        ApiError: Any other answer.
    """
    if response.is_success or response.status_code == httpx.codes.SERVICE_UNAVAILABLE:
        return response.is_success
    raise error(response)


def transport_error(failure: httpx.TransportError, url: httpx.URL) -> TriptychError:
    """Our exception of a failure below HTTP."""
    if isinstance(failure, httpx.TimeoutException):
        return Timeout(f"no answer from {url} in time")
    return ConnectionFailed(f"cannot reach {url}: {str(failure) or type(failure).__name__}")


def seconds(retry_after: str | None) -> float | None:
    """The header's value, a number of seconds or a date (RFC 9110, 10.2.3); None if unreadable."""
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
    """The exception of an error's body; in a stream its name stands for the status."""
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


def _not_ours(response: httpx.Response, invalid: ValidationError) -> InvalidAnswer:
    first = invalid.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"]) or "the body"
    return InvalidAnswer(
        f"{response.url} does not answer as Triptych does: {place}: {first['msg']}"
    )
