"""What Triton says when it refuses, as our errors."""

from __future__ import annotations

import logging
import re

import grpc
from tritonclient.utils import InferenceServerException

from serving.codec import decode_error
from serving.errors import (
    DeadlineExceeded,
    InternalError,
    Overloaded,
    ServingError,
    Unavailable,
)

log = logging.getLogger(__name__)

RETRY_AFTER_S = 1.0

# Texts of Triton's own (core/src: scheduler_utils.cc, model.cc, dynamic_batch_scheduler.cc); it has
# no finer codes for them than UNAVAILABLE.
_QUEUE_FULL = re.compile(r"exceeds maximum queue size", re.IGNORECASE)
# python_backend/src: its process was killed; `triptych triton` replaces it within a second.
_DEAD_STUB = re.compile(r"Stub process .* is not healthy", re.IGNORECASE)
# core/src/model_repository_manager: taken out of service, which `triptych triton` does to heal it.
_NOT_LOADED = re.compile(r"Request for unknown model", re.IGNORECASE)
_QUEUE_TIMEOUT = re.compile(r"request timeout expired|timeout expired", re.IGNORECASE)


def from_triton(error: Exception, model: str) -> ServingError:
    """The error that the user sees for one of Triton's.

    A backend's own refusal, `<wire name>: <message>`, keeps its kind and its message; of everything
    else only the kind is told, and the log has the text.
    """
    text, status = _text(error), _status(error)
    if own := decode_error(text):
        if isinstance(own, Overloaded | Unavailable):
            own.retry_after_s = RETRY_AFTER_S
        return own
    if _QUEUE_FULL.search(text):
        return Overloaded(f"{model} is busy: try again", retry_after_s=RETRY_AFTER_S)
    if status == "DEADLINE_EXCEEDED" or _QUEUE_TIMEOUT.search(text):
        return DeadlineExceeded(f"{model} did not finish in time")
    is_away = _DEAD_STUB.search(text) or _NOT_LOADED.search(text)
    level = logging.DEBUG if is_away else logging.WARNING  # one heals; hundreds may be refused
    log.log(level, "triton refused model=%s status=%s text=%s", model, status, text)
    if is_away or status in {"UNAVAILABLE", "NOT_FOUND", "CANCELLED"}:
        return Unavailable(f"{model} is not up: try again", retry_after_s=RETRY_AFTER_S)
    return InternalError(f"{model} failed: the gateway's log says why")


def _text(error: Exception) -> str:
    if isinstance(error, InferenceServerException):
        return error.message() or ""
    return (error.details() or "") if isinstance(error, grpc.aio.AioRpcError) else str(error)


def _status(error: Exception) -> str:
    """Name of the gRPC status, empty where there is none."""
    if isinstance(error, InferenceServerException):
        return (error.status() or "").removeprefix("StatusCode.")
    return str(error.code().name) if isinstance(error, grpc.aio.AioRpcError) else ""
