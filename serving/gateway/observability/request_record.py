"""What every protocol records of a request: its id, one log line, and its metrics."""

from __future__ import annotations

import logging
import re
import secrets

from serving.gateway.observability.metrics import Metrics
from serving.gateway.observability.trace_context import Trace

log = logging.getLogger(__name__)

CANCELLED = "cancelled"
"""Failure of a request whose client disconnected."""

_REQUEST_ID = re.compile(r"[!-~]{1,128}")


def request_id(given: str | None) -> str:
    """The client's id if it is safe to log and to return, else a new one."""
    return given if given and _REQUEST_ID.fullmatch(given) else secrets.token_hex(16)


def record(
    metrics: Metrics,
    route: str,
    duration_s: float,
    failure: str | None,
    trace: Trace | None,
    *,
    level: int = logging.INFO,
    **fields: object,
) -> None:
    """Count a request and log it.

    Args:
        route: Label of the metrics.
        duration_s: Of the whole request.
        failure: Name of the error, CANCELLED, or None.
        trace: The request's; its ids are logged.
    """
    metrics.answered(route, duration_s, failure)
    common = {"route": route, "error": failure, "duration_ms": round(duration_s * 1000, 1)}
    ids = {"trace_id": trace.context.trace_id, "span_id": trace.context.span_id} if trace else {}
    log.log(level, "answered", extra={**fields, **ids, **common})
