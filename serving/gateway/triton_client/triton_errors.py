"""Triton's errors as ours."""

from __future__ import annotations

import logging
import re

import grpc
from tritonclient.utils import InferenceServerException

from inference.errors import (
    DeadlineExceeded,
    InternalError,
    Overloaded,
    ServingError,
    Unavailable,
)
from inference.model_errors import decode_error

log = logging.getLogger(__name__)

RETRY_AFTER_S = 1.0

# Messages of Triton (core/src: scheduler_utils.cc, model.cc, dynamic_batch_scheduler.cc):
# their only status is UNAVAILABLE.
_QUEUE_FULL = re.compile(r"exceeds maximum queue size", re.IGNORECASE)
# python_backend/src: its process was killed; `triptych triton` replaces it within a second.
_DEAD_STUB = re.compile(r"Stub process .* is not healthy", re.IGNORECASE)
# core/src/model_repository_manager: unloaded, which `triptych triton` does to restart it.
_NOT_LOADED = re.compile(r"Request for unknown model", re.IGNORECASE)
# grpc.aio: a request was written to a connection that had just broken; its status is INTERNAL.
_CONNECTION_LOST = re.compile(r"Internal error from Core")
_NO_CONNECTION = re.compile(r"failed to connect to", re.IGNORECASE)
# core/src (server.cc, dynamic_batch_scheduler.cc): of new requests, and of the health endpoint.
_SHUTTING_DOWN = re.compile(r"\bserver (?:not ready|exiting|is stopping)", re.IGNORECASE)
_QUEUE_TIMEOUT = re.compile(r"request timeout expired|timeout expired", re.IGNORECASE)


def from_triton(error: Exception, model: str) -> ServingError:
    """The error of a response for one of Triton's.

    An error of our own backends, `<wire name>: <message>`, keeps its type and message; of others
    and of internal errors only the type is returned, and the log has the message.
    """
    text, status = _text(error), _status(error)
    own = decode_error(text)
    if own is not None and not isinstance(own, InternalError):
        if isinstance(own, Overloaded | Unavailable):
            own.retry_after_s = RETRY_AFTER_S
        return own
    if _QUEUE_FULL.search(text):
        return Overloaded(f"{model} is busy: try again", retry_after_s=RETRY_AFTER_S)
    if status == "DEADLINE_EXCEEDED" or _QUEUE_TIMEOUT.search(text):
        return DeadlineExceeded(f"{model} did not finish in time")
    expected = (_DEAD_STUB, _NOT_LOADED, _CONNECTION_LOST, _SHUTTING_DOWN)
    is_restarting = any(pattern.search(text) for pattern in expected)
    level = (
        logging.DEBUG if is_restarting else logging.WARNING
    )  # expected during a restart, for many requests
    log.log(level, "triton refused model=%s status=%s text=%s", model, status, text)
    if is_restarting or status in {"UNAVAILABLE", "NOT_FOUND", "CANCELLED"}:
        unavailable = Unavailable(f"{model} is not up: try again", retry_after_s=RETRY_AFTER_S)
        unavailable.is_not_loaded = bool(_NOT_LOADED.search(text))
        unavailable.is_unnoticed = bool(_DEAD_STUB.search(text))
        refusals = (_NOT_LOADED, _NO_CONNECTION, _SHUTTING_DOWN)
        unavailable.is_loss = not any(pattern.search(text) for pattern in refusals)
        return unavailable
    return InternalError(f"{model} failed: the gateway's log has the cause")


def _text(error: Exception) -> str:
    if isinstance(error, InferenceServerException):
        return error.message() or ""
    return (error.details() or "") if isinstance(error, grpc.aio.AioRpcError) else str(error)


def _status(error: Exception) -> str:
    """Name of the gRPC status, empty where there is none."""
    if isinstance(error, InferenceServerException):
        return (error.status() or "").removeprefix("StatusCode.")
    return str(error.code().name) if isinstance(error, grpc.aio.AioRpcError) else ""


def is_shutting_down(error: Exception) -> bool:
    """Whether Triton has refused a call because it shuts down."""
    return bool(_SHUTTING_DOWN.search(_text(error)))
