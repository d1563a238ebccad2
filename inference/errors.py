"""Every error of the server, as one tree; its root is an error of the package `triptych`.

```
ServingError
├── InvalidRequest            422  INVALID_ARGUMENT    invalid_request
│   ├── Quarantined           422  INVALID_ARGUMENT    quarantined
│   ├── MalformedBody         400  INVALID_ARGUMENT    malformed_body
│   ├── TooLong               422  INVALID_ARGUMENT    too_long
│   ├── UnsupportedMediaType  415  INVALID_ARGUMENT    unsupported_media_type
│   ├── PayloadTooLarge       413  INVALID_ARGUMENT    payload_too_large
│   └── UnsupportedImage      415  INVALID_ARGUMENT    unsupported_image
├── Unauthorized              401  UNAUTHENTICATED     unauthorized
│   └── WrongKey              403  PERMISSION_DENIED   wrong_key
├── CrossSite                 403  PERMISSION_DENIED   cross_site
├── UnknownHost               421  PERMISSION_DENIED   unknown_host
├── UnknownModel              404  NOT_FOUND           unknown_model
│   └── ModelNotChat          404  NOT_FOUND           model_not_chat
├── UnknownGlossary           404  NOT_FOUND           unknown_glossary
├── UnknownRoute              404  UNIMPLEMENTED       unknown_route
├── MethodNotAllowed          405  UNIMPLEMENTED       method_not_allowed
├── PreconditionFailed        412  FAILED_PRECONDITION precondition_failed
├── Overloaded                429  RESOURCE_EXHAUSTED  overloaded
├── Unavailable               503  UNAVAILABLE         unavailable
├── DeadlineExceeded          504  DEADLINE_EXCEEDED   deadline_exceeded
├── InternalError             500  INTERNAL            internal
└── SetupError                 –   –                   setup       (exit code 1, one line)
    ├── BundleError            –   –                   bundle      (damaged or incomplete bundle)
    ├── CheckpointError        –   –                   checkpoint  (damaged, unsupported checkpoint)
    └── DeviceError            –   –                   device      (missing on this machine)
```

A leaf fixes its wire name, HTTP status and gRPC status. The message says what was wrong, what was
expected and what to do; it never holds the user's text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from triptych.errors import TriptychError


class ServingError(TriptychError):
    """Base of all errors of the server; its message is one line.

    Args:
        message: What was wrong, what was expected, what to do.
        field: The invalid field of the request, where there is one.
        retry_after_s: Seconds after which a retry may succeed (becomes `Retry-After`).
    """

    wire: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500
    grpc_status: ClassVar[str] = "INTERNAL"

    def __init__(
        self, message: str, *, field: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.retry_after_s = retry_after_s


class InvalidRequest(ServingError):
    """The request cannot be served as it is; sending it again will not help."""

    wire, http_status, grpc_status = "invalid_request", 422, "INVALID_ARGUMENT"


class MalformedBody(InvalidRequest):
    """The body is not what its content type says."""

    wire, http_status = "malformed_body", 400


class UnsupportedMediaType(InvalidRequest):
    """The body has another content type than those of the path."""

    wire, http_status = "unsupported_media_type", 415


class TooLong(InvalidRequest):
    """More tokens than the model takes."""

    wire = "too_long"


class PayloadTooLarge(InvalidRequest):
    """More bytes or pixels than the limit."""

    wire, http_status = "payload_too_large", 413


class Quarantined(InvalidRequest):
    """The model's process ended each time that it ran this request."""

    wire = "quarantined"


class UnsupportedImage(InvalidRequest):
    """Not an image that we read, or a damaged one."""

    wire, http_status = "unsupported_image", 415


class Unauthorized(ServingError):
    """No key, or the wrong one."""

    wire, http_status, grpc_status = "unauthorized", 401, "UNAUTHENTICATED"


class WrongKey(Unauthorized):
    """A key that is not the gateway's, in APIs that tell it from no key."""

    wire, http_status, grpc_status = "wrong_key", 403, "PERMISSION_DENIED"


class CrossSite(ServingError):
    """A page of another site sent the request."""

    wire, http_status, grpc_status = "cross_site", 403, "PERMISSION_DENIED"


class UnknownHost(ServingError):
    """The request is for a name that is not the gateway's."""

    wire, http_status, grpc_status = "unknown_host", 421, "PERMISSION_DENIED"


class UnknownModel(ServingError):
    """No bundle of that name is served."""

    wire, http_status, grpc_status = "unknown_model", 404, "NOT_FOUND"


class ModelNotChat(UnknownModel):
    """The model has no chat template, or none is served that has one."""

    wire = "model_not_chat"


class UnknownGlossary(ServingError):
    """No glossary of that name is stored for this key."""

    wire, http_status, grpc_status = "unknown_glossary", 404, "NOT_FOUND"


class UnknownRoute(ServingError):
    """No such path."""

    wire, http_status, grpc_status = "unknown_route", 404, "UNIMPLEMENTED"


class MethodNotAllowed(ServingError):
    """The path exists, the verb does not."""

    wire, http_status, grpc_status = "method_not_allowed", 405, "UNIMPLEMENTED"


class PreconditionFailed(ServingError):
    """What the request is to change is not as the request requires."""

    wire, http_status, grpc_status = "precondition_failed", 412, "FAILED_PRECONDITION"


class Overloaded(ServingError):
    """The queue is full: busy, not dead."""

    wire, http_status, grpc_status = "overloaded", 429, "RESOURCE_EXHAUSTED"


class Unavailable(ServingError):
    """The model is not up, or the server is draining.

    Attributes:
        is_not_loaded: Triton refused the call because it has not loaded that version of the model.
        is_loss: The call may have been running when the process of its model ended.
        is_unnoticed: Triton still reports the model as ready.
        is_moved: The gateway has ended the sequence, which is to go on at another server.
    """

    is_not_loaded = False
    is_loss = False
    is_unnoticed = False
    is_moved = False

    wire, http_status, grpc_status = "unavailable", 503, "UNAVAILABLE"


class DeadlineExceeded(ServingError):
    """The request's time was up before its answer was complete."""

    wire, http_status, grpc_status = "deadline_exceeded", 504, "DEADLINE_EXCEEDED"


class InternalError(ServingError):
    """A bug of ours; the log holds the cause under the request's id."""

    wire = "internal"


class SetupError(ServingError):
    """Something is wrong before serving starts: a port in use, a missing program."""

    wire = "setup"


class BundleError(SetupError):
    """A bundle on disk is damaged, incomplete or of another format."""

    wire = "bundle"


class CheckpointError(SetupError):
    """A checkpoint is damaged, incomplete or of an architecture that we do not have."""

    wire = "checkpoint"


class DeviceError(SetupError):
    """This machine lacks what a bundle's graphs run on; other bundles are served."""

    wire = "device"


def _kinds(root: type[ServingError]) -> Iterator[type[ServingError]]:
    for kind in root.__subclasses__():
        if kind is not SetupError:
            yield kind
            yield from _kinds(kind)


KINDS = {kind.wire: kind for kind in _kinds(ServingError)}
"""Wire name → class, of all errors of requests."""
