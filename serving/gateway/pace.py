"""How quickly tokens arrive: time to the first one of a request, and from one to the next."""

from __future__ import annotations

import time

from serving.gateway.metrics import Metrics


class Pace:
    """The clock of one request; each of its calls has a `Beat`.

    Args:
        metrics: Where times are counted.
        route: Label of the request's path.
        started_s: When the request came (`time.monotonic`).
    """

    def __init__(self, metrics: Metrics, route: str, started_s: float) -> None:
        self._first = metrics.first_token.labels(route)
        self._between = metrics.inter_token.labels(route)
        self._started_s = started_s
        self._has_begun = False

    def beat(self) -> Beat:
        """The clock of one call."""
        return Beat(self)

    def begin(self, now_s: float) -> None:
        """Note the request's first token."""
        if not self._has_begun:
            self._has_begun = True
            self._first.observe(now_s - self._started_s)

    def go_on(self, seconds: float, tokens: int) -> None:
        """Note tokens that came together: the time before them is shared among them."""
        for _ in range(tokens):
            self._between.observe(seconds / tokens)


class Beat:
    """The clock of one call."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._last_s: float | None = None

    def tokens(self, count: int) -> None:
        """Note tokens that have just arrived."""
        now_s = time.monotonic()
        self._pace.begin(now_s)
        if self._last_s is not None:
            self._pace.go_on(now_s - self._last_s, count)
        self._last_s = now_s
