"""Every error of this package, as one tree; `inference.errors.ServingError` is a further branch.

```
TriptychError
├── InvalidArgument        an argument breaks the protocol's rules; nothing was sent
│   └── UnreadableImage    an image cannot be read; nothing was sent
├── ConnectionFailed       no gateway at that address, or the connection broke   retried
├── Timeout                no response within the client's timeout
├── InvalidResponse        not the protocol's: wrong address or version
└── ApiError               the gateway answered with an error
    ├── InvalidRequest     422, 400, 413, 415   INVALID_ARGUMENT   (also 408, 412, 414, 421, 431)
    ├── Unauthorized       401, 403             UNAUTHENTICATED, PERMISSION_DENIED
    ├── NotFound           404, 405             NOT_FOUND, UNIMPLEMENTED
    ├── Overloaded         429                  RESOURCE_EXHAUSTED   retried
    ├── Unavailable        503                  UNAVAILABLE          retried
    ├── DeadlineExceeded   504                  DEADLINE_EXCEEDED
    └── ServerError        any other
```

Retried errors are raised after the last attempt (`Retries`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class TriptychError(Exception):
    """Base of all errors that Triptych raises on purpose; `str()` of one is a single line."""


class InvalidArgument(TriptychError, ValueError):
    """An argument breaks the protocol's rules; nothing was sent."""


class UnreadableImage(InvalidArgument):
    """An image cannot be read; nothing was sent."""


class ConnectionFailed(TriptychError):
    """No gateway at that address, or the connection broke."""


class Timeout(TriptychError):
    """No response within the client's timeout."""


class InvalidResponse(TriptychError):
    """The response is not the protocol's: another server, or another version."""


class ApiError(TriptychError):
    """The gateway answered with an error.

    Args:
        message: What was wrong, what was expected, what to do.
        status: HTTP status; over gRPC, the one that HTTP would have had.
        type: Wire name of the error, e.g. `too_long`.
        field: The invalid field of the request, where there is one.
        request_id: Id of the request in the gateway's log.
        retry_after_s: Seconds after which a retry may succeed.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        type: str,
        field: str | None = None,
        request_id: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.type = type
        self.field = field
        self.request_id = request_id
        self.retry_after_s = retry_after_s


class InvalidRequest(ApiError):
    """The request cannot be served as it is; sending it again will not help."""


class Unauthorized(ApiError):
    """No key, or the wrong one."""


class NotFound(ApiError):
    """No such model, glossary or route."""


class Overloaded(ApiError):
    """The queue is full; a retry may succeed."""


class Unavailable(ApiError):
    """The model is not loaded, or the gateway is draining."""


class DeadlineExceeded(ApiError):
    """The request's deadline passed before its response was complete."""


class ServerError(ApiError):
    """The server failed."""


STATUS_OF_TYPE: dict[str, int] = {
    "malformed_body": 400,
    "unauthorized": 401,
    "wrong_key": 403,
    "unknown_model": 404,
    "model_not_chat": 404,
    "unknown_glossary": 404,
    "unknown_route": 404,
    "method_not_allowed": 405,
    "precondition_failed": 412,
    "payload_too_large": 413,
    "unsupported_media_type": 415,
    "unsupported_image": 415,
    "cross_site": 403,
    "unknown_host": 421,
    "invalid_request": 422,
    "too_long": 422,
    "quarantined": 422,
    "overloaded": 429,
    "internal": 500,
    "unavailable": 503,
    "deadline_exceeded": 504,
}
"""Wire name of an error → HTTP status, for errors without one: in streams and over gRPC."""

BY_STATUS: dict[int, type[ApiError]] = {
    **dict.fromkeys((400, 408, 412, 413, 414, 415, 421, 422, 431), InvalidRequest),
    **dict.fromkeys((401, 403), Unauthorized),
    **dict.fromkeys((404, 405), NotFound),
    429: Overloaded,
    503: Unavailable,
    504: DeadlineExceeded,
}
"""HTTP status → class; `ServerError` for all others."""


def one_line(error: ValidationError) -> str:
    """The first fault as `field.of.field: message`, without the value that was given."""
    place, message = first_fault(error)
    return f"{place}: {message}" if place else message


def first_fault(error: ValidationError) -> tuple[str, str]:
    """Dotted path (empty for the whole) and message of the first fault."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    message = first["msg"].removeprefix("Value error, ")
    return ".".join(str(part) for part in first["loc"]), message
