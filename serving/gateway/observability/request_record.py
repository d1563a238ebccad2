"""What every protocol records of a request: its id, one log line, and its metrics."""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Sequence

from serving.gateway.observability.metrics import Metrics, Timings
from serving.gateway.observability.trace_context import TRACE, Trace

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


class TokenLatency:
    """Token times of one request; each of its calls has a `SequenceLatency`.

    Args:
        metrics: Histograms.
        route: Label of the request's route.
        started_s: Arrival of the request (`time.monotonic`).
    """

    def __init__(self, metrics: Metrics, route: str, started_s: float) -> None:
        self._first = metrics.first_token(route)
        self._between = metrics.inter_token(route)
        self._started_s = started_s
        self._has_begun = False

    def sequence(self) -> SequenceLatency:
        """Token times of one call."""
        return SequenceLatency(self)

    def observe_first(self, now_s: float) -> None:
        """Record the request's first token; later calls have no effect."""
        if not self._has_begun:
            self._has_begun = True
            self._first.observe(now_s - self._started_s)

    def observe_next(self, seconds: float, tokens: int) -> None:
        """Record tokens that arrived together: each gets an equal share of the time before."""
        for _ in range(tokens):
            self._between.observe(seconds / tokens)


class SequenceLatency:
    """Token times of one call."""

    def __init__(self, request: TokenLatency) -> None:
        self._request = request
        self._last_s: float | None = None

    def observe(self, tokens: int) -> None:
        """Record tokens that have just arrived."""
        now_s = time.monotonic()
        self._request.observe_first(now_s)
        if self._last_s is not None:
            self._request.observe_next(now_s - self._last_s, tokens)
        self._last_s = now_s


class RequestTimes:
    """When a request began, was planned and must end; begins when it is made.

    Args:
        metrics: Token times are recorded there.
        route: Label of the metrics.
    """

    def __init__(self, metrics: Metrics, route: str, limit_s: float) -> None:
        self._started_s = self._planned_s = time.monotonic()
        self._deadline_s = self._started_s + limit_s
        self.latency = TokenLatency(metrics, route, self._started_s)

    @property
    def left_s(self) -> float:
        """The time that a call has; never zero."""
        return max(0.001, self._deadline_s - time.monotonic())

    def planned(self) -> None:
        """The request has its first plan."""
        self._planned_s = time.monotonic()
        if (trace := TRACE.get()) is not None:
            trace.phase("preprocess", self._started_s, self._planned_s)

    def until_now(self, sent_s: Sequence[float]) -> Timings:
        """Where the time went, given when the calls were sent."""
        now_s = time.monotonic()
        sent_s = sent_s or [now_s]  # a plan without calls has everything cached
        return Timings(
            tokenization_s=self._planned_s - self._started_s,
            queue_s=max(sent_s) - self._planned_s,
            inference_s=now_s - min(sent_s),
        )
