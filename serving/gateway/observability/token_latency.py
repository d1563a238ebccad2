"""A request's times: to its plan, to its first token, between tokens, and to its deadline."""

from __future__ import annotations

import time
from collections.abc import Sequence

from serving.gateway.observability.metrics import Metrics, Timings
from serving.gateway.observability.trace_context import TRACE


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
