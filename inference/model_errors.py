"""Errors of a model's process, as the text of an error of Triton, and back.

Every backend writes them and the gateway reads them. Triton's own clients get the text too, so that
it never has that of an exception, which may hold paths or input.
"""

from __future__ import annotations

import logging
import re
import secrets

from inference.errors import KINDS, InternalError, Overloaded, ServingError, SetupError

log = logging.getLogger(__name__)

_ID_BYTES = 4


def hide_cause(error: Exception, what: str) -> ServingError:
    """The error of requests during which an exception was raised.

    Only the log has the exception, under an id that the message has too.

    Args:
        what: The message begins with it: "decoding failed".
    """
    reference = secrets.token_hex(_ID_BYTES)
    log.error("%s id=%s", what, reference, exc_info=error)
    reported: ServingError = InternalError(
        f"{what}: the log of the model has the cause, id {reference}"
    )
    if isinstance(error, MemoryError):
        reported = Overloaded(f"{what}: out of memory, try again later, id {reference}")
    reported.__cause__ = error
    return reported


def encode_error(error: Exception) -> str:
    """`<wire name>: <message>`.

    The cause of other exceptions than ours, and of errors about this machine or its files, is
    hidden.
    """
    if not isinstance(error, ServingError) or isinstance(error, SetupError):
        error = hide_cause(error, "the request failed")
    return f"{error.wire}: {error.message}"


def decode_error(text: str) -> ServingError | None:
    """The error that `encode_error` wrote, found behind any prefix of Triton's; None for others."""
    found = _ERROR.search(text)
    if found and _RUNTIME_ERROR.search(text, 0, found.start()):
        return None
    return KINDS[found["wire"]](found["message"]) if found else None


_ERROR = re.compile(rf"(?:^|[\s:])(?P<wire>{'|'.join(KINDS)}): (?P<message>.+)", re.DOTALL)
_RUNTIME_ERROR = re.compile(r"(?:onnx ?runtime|openvino) error", re.IGNORECASE)
"""Beginning of an error of a runtime, whose text may look like one of ours."""
