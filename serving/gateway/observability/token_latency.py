"""Time to a request's first token, and between the tokens of each of its sequences."""

from __future__ import annotations

import time

from serving.gateway.observability.metrics import Metrics


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
