"""Everything that can go wrong between a client and a gateway, as one tree.

```
TriptychError
├── InvalidArgument        the call breaks the protocol's rules; nothing was sent
│   └── UnreadableImage    what was given as a picture cannot be read
├── ConnectionFailed       no gateway at that address, or the connection or a stream broke
├── Timeout                no answer within the client's timeout
├── InvalidAnswer          an answer that is not the protocol's: wrong address or version
└── ApiError               the gateway answered with an error
    ├── InvalidRequest     422, 400, 413, 415   INVALID_ARGUMENT
    ├── Unauthorized       401                  UNAUTHENTICATED
    ├── NotFound           404, 405             NOT_FOUND, UNIMPLEMENTED
    ├── Overloaded         429                  RESOURCE_EXHAUSTED   tried again
    ├── Unavailable        503                  UNAVAILABLE          tried again
    ├── DeadlineExceeded   504                  DEADLINE_EXCEEDED
    └── ServerError        any other
```

`ConnectionFailed`, `Overloaded` and `Unavailable` are raised after the last of several attempts.
"""

from __future__ import annotations


class TriptychError(Exception):
    """Anything that this package raises on purpose; `str()` of it is one line for people."""


class InvalidArgument(TriptychError, ValueError):
    """The call breaks the protocol's rules; nothing was sent."""


class UnreadableImage(InvalidArgument):
    """What was given as a picture cannot be read; nothing was sent."""


class ConnectionFailed(TriptychError):
    """No gateway at that address, or the connection or a stream broke."""


class Timeout(TriptychError):
    """No answer within the client's timeout."""


class InvalidAnswer(TriptychError):
    """An answer that is not the protocol's: another server, or another version."""


class ApiError(TriptychError):
    """The gateway answered with an error.

    Args:
        message: What was wrong, what was expected, what to do.
        status: HTTP status; over gRPC, the one that HTTP would have had.
        type: Wire name of the error, e.g. `too_long`.
        field: The request's field that is to blame, where there is one.
        request_id: Under which the gateway logged it.
        retry_after_s: When trying again makes sense.
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
    """No such model or route."""


class Overloaded(ApiError):
    """The queue is full: busy, not dead."""


class Unavailable(ApiError):
    """The model is not up, or the gateway is draining."""


class DeadlineExceeded(ApiError):
    """The request's time was up before its answer was complete."""


class ServerError(ApiError):
    """A failure of the server's own."""


STATUS_OF_TYPE: dict[str, int] = {
    "malformed_body": 400,
    "unauthorized": 401,
    "unknown_model": 404,
    "unknown_route": 404,
    "method_not_allowed": 405,
    "payload_too_large": 413,
    "unsupported_image": 415,
    "invalid_request": 422,
    "too_long": 422,
    "overloaded": 429,
    "internal": 500,
    "unavailable": 503,
    "deadline_exceeded": 504,
}
"""The HTTP status of an error by its wire name, where it travels without one: in streams, over
gRPC."""

BY_STATUS: dict[int, type[ApiError]] = {
    400: InvalidRequest,
    401: Unauthorized,
    404: NotFound,
    405: NotFound,
    413: InvalidRequest,
    415: InvalidRequest,
    422: InvalidRequest,
    429: Overloaded,
    503: Unavailable,
    504: DeadlineExceeded,
}
"""The class of an HTTP status; `ServerError` where none stands here."""
