"""The gateway's Prometheus metrics: one registry a gateway, no user text in any label."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from serving.gateway.answers import Timings

_ROWS = (1, 2, 4, 8, 16, 32, 64)
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """All metrics (`docs/operations.md` lists them)."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._counter("request_count", "Requests.")
        self.successes = self._counter("request_success", "Requests with a status below 400.")
        self.failures = self._counter("request_failure", "Failed or cancelled requests.", "type")
        self.duration = self._seconds("request_duration", "Duration of a request.")
        self.tokenization = self._seconds(
            "request_tokenization_duration", "Conversion of text and images to arrays."
        )
        self.queue = self._seconds(
            "request_queue_duration", "Longest wait of a request's calls before they are sent."
        )
        self.inference = self._seconds(
            "request_inference_duration", "Time at Triton, its own queue included."
        )
        self.first_token = self._seconds(
            "request_time_to_first_token", "From the arrival of a request to its first token."
        )
        self.inter_token = self._seconds(
            "request_inter_token", "Between two tokens of one sequence, on arrival."
        )
        self.call_rows = Histogram(
            "triptych_call_rows",
            "Rows of a call to a stateless model.",
            ("model",),
            registry=self.registry,
            buckets=_ROWS,
        )
        self.joined_calls = Counter(
            "triptych_joined_calls",
            "Calls that shared one with others.",
            ("model",),
            registry=self.registry,
        )
        self.queue_size = Gauge(
            "triptych_queue_size", "Calls waiting to be sent to Triton.", registry=self.registry
        )
        self.tokens = Gauge(
            "triptych_tokens_in_flight",
            "Input tokens of admitted requests.",
            registry=self.registry,
        )

    def answered(self, route: str, duration_s: float, failure: str | None) -> None:
        """Count one request; `failure` is the error's wire name, or `cancelled`."""
        self.requests(route).inc()
        self.duration(route).observe(duration_s)
        if failure is None:
            self.successes(route).inc()
        else:
            self.failures(route, failure).inc()

    def observe_timings(self, route: str, timings: Timings) -> None:
        """Record where one request's time went."""
        self.tokenization(route).observe(timings.tokenization_s)
        self.queue(route).observe(timings.queue_s)
        self.inference(route).observe(timings.inference_s)

    def observe_call(self, model: str, rows: int, calls: int) -> None:
        """Record a call to a stateless model (of Triton).

        Args:
            model: Its name.
            rows: Of the call.
            calls: Calls of requests that it was made of.
        """
        self.call_rows.labels(model).observe(rows)
        if calls > 1:
            self.joined_calls.labels(model).inc(calls)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Callable[..., Counter]:
        """Values of labels → their counter, which is found once: `labels` takes a lock."""
        metric = Counter(f"triptych_{name}", text, ("route", *labels), registry=self.registry)
        return cache(metric.labels)

    def _seconds(self, name: str, text: str) -> Callable[[str], Histogram]:
        """Route → its histogram."""
        metric = Histogram(
            f"triptych_{name}_seconds", text, ("route",), registry=self.registry, buckets=_SECONDS
        )
        return cache(metric.labels)
