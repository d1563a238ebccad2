"""The gateway's Prometheus metrics: one registry a gateway, no user text in any label.

Workers count into files that they all read (the multiprocess mode of prometheus_client), so that
each of them can answer `/metrics` for all, and nothing is lost with a worker that was killed.
"""

from __future__ import annotations

import contextlib
import logging
import re
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from serving.gateway.observability.trace_context import TRACE, Trace


@dataclass(frozen=True)
class Timings:
    """Where a request's time went."""

    tokenization_s: float
    queue_s: float
    """The longest wait of one of its calls."""
    inference_s: float
    """From the start of its first call to the last outcome; of a stream, to the first chunk."""

    def __add__(self, other: Timings) -> Timings:
        """Of a request that is answered in two legs."""
        return Timings(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


_ROWS = (1, 2, 4, 8, 16, 32, 64)
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


@dataclass(frozen=True)
class Load:
    """What is in use now, in the whole gateway.

    Attributes:
        queued: Calls that wait to be sent to Triton.
        tokens: Input tokens of admitted requests.
        workers: Processes that serve.
        worker_restarts: Processes started in place of one that ended.
    """

    queued: int = 0
    tokens: int = 0
    workers: int = 1
    worker_restarts: int = 0


class Metrics:
    """All metrics (`docs/operations.md` lists them).

    Args:
        folder: The files of all workers, if there are several; this process writes its own as its
            value class (`prometheus_client.values`) says.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.registry = CollectorRegistry()
        self._exposed = self.registry
        if folder is not None:
            self._exposed = CollectorRegistry()
            _WorkersCollector(self._exposed, str(folder))  # type: ignore[no-untyped-call]
        self.read_load: Callable[[], Load] = Load
        """What is in use now; replaced by what knows it."""
        self._exposed.register(_LoadCollector(lambda: self.read_load()))
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
        counter = partial(Counter, registry=self.registry)
        self.event_loop_stalls = counter(
            "triptych_event_loop_stalls",
            "Times at which the event loop stood still for more than 0.1 s.",
        )
        self.event_loop_stalled_s = counter(
            "triptych_event_loop_stalled_seconds",
            "Time for which the event loop stood still, of stalls of more than 0.1 s.",
        )
        self._background_failures = counter(
            "triptych_background_failures",
            "Failures of tasks beside requests, each of which was started again.",
            ("task",),
        )
        self.closed_connections = counter(
            "triptych_connections_closed",
            "HTTP connections that the gateway ended, by what the client exceeded.",
            ("reason",),
        )
        """By a status, or what the client exceeded."""
        self.resent_calls = counter(
            "triptych_resent_calls",
            "Calls sent again because their model was not up, or its process had ended.",
            ("model",),
        )
        self.kept_tokens = counter(
            "triptych_kept_tokens",
            "Tokens that streams had when their model's process ended; they are not lost.",
            ("model",),
        )
        self.quarantined_calls = counter(
            "triptych_quarantined_calls",
            "Calls that ended a model's process repeatedly and are refused for a while.",
            ("model",),
        )
        self.endpoint_ejections = counter(
            "triptych_endpoint_ejections",
            "Times at which a Triton stopped to respond, or shut down.",
            ("endpoint",),
        )
        endpoint = partial(self._gauge, label="endpoint")
        self._endpoint_calls = endpoint("endpoint_calls", "Calls in flight at a Triton.")
        self._endpoint_tokens = endpoint(
            "endpoint_tokens", "Outstanding tokens of a Triton, an estimate."
        )
        self._endpoint_up = endpoint(
            "endpoint_up",
            "Whether a Triton takes new calls; of several workers, for all of them.",
            mode="min",
        )
        self.limits_store_up = self._gauge(
            "limits_store_up",
            "Whether the store of limits by key responds: they hold for all gateways.",
            "store",
            "min",
        )
        self.joined_calls = counter(
            "triptych_joined_calls", "Calls that shared one with others.", ("model",)
        )

    def failed_in_background(self, task: str) -> None:
        """Count a failure of a task beside requests (`BackgroundTasks`)."""
        self._background_failures.labels(task).inc()

    def count_answer(self, route: str, duration_s: float, failure: str | None) -> None:
        """Count one request; `failure` is the error's wire name, or `cancelled`."""
        self.requests(route).inc()
        self.duration(route).observe(duration_s)
        if failure is None:
            self.successes(route).inc()
        else:
            self.failures(route, failure).inc()

    def observe_endpoint(self, name: str, calls: int, tokens: int, *, is_up: bool) -> None:
        """Publish the state of a Triton.

        Args:
            name: HOST:PORT.
            calls: In flight.
            tokens: Outstanding.
            is_up: Whether it takes new calls.
        """
        self._endpoint_calls.labels(name).set(calls)
        self._endpoint_tokens.labels(name).set(tokens)
        self._endpoint_up.labels(name).set(is_up)

    def forget_endpoint(self, name: str) -> None:
        """Drop the state of a Triton that has left; workers share files, in which it stays as 0."""
        self.observe_endpoint(name, 0, 0, is_up=False)
        if self._exposed is self.registry:
            for gauge in (self._endpoint_calls, self._endpoint_tokens, self._endpoint_up):
                gauge.remove(name)

    def observe_timings(self, route: str, timings: Timings) -> None:
        """Record where one request's time went."""
        self.tokenization(route).observe(timings.tokenization_s)
        self.queue(route).observe(timings.queue_s)
        self.inference(route).observe(timings.inference_s)

    def observe_call(self, model: str, rows: int, calls: int) -> None:
        """Record a call to a stateless model (of Triton).

        Args:
            rows: Of the call.
            calls: Calls of requests that it was made of.
        """
        self.call_rows.labels(model).observe(rows)
        if calls > 1:
            self.joined_calls.labels(model).inc(calls)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._exposed)

    def _counter(self, name: str, text: str, *labels: str) -> Callable[..., Counter]:
        """Values of labels → their counter, which is found once: `labels` takes a lock."""
        metric = Counter(f"triptych_{name}", text, ("route", *labels), registry=self.registry)
        return cache(metric.labels)

    def _gauge(
        self, name: str, text: str, label: str, mode: Literal["sum", "min"] = "sum"
    ) -> Gauge:
        """State of each server; `mode` joins the values of several workers."""
        name = f"triptych_{name}"
        return Gauge(name, text, (label,), registry=self.registry, multiprocess_mode=mode)

    def _seconds(self, name: str, text: str) -> Callable[[str], Histogram]:
        """Route → its histogram."""
        metric = Histogram(
            f"triptych_{name}_seconds", text, ("route",), registry=self.registry, buckets=_SECONDS
        )
        return cache(metric.labels)


class _WorkersCollector(MultiProcessCollector):
    """Reads the files of all workers but those that a starting worker has only created.

    prometheus_client raises for an empty file.
    """

    def collect(self) -> Iterable[Metric]:
        """The metrics of all files, joined."""
        files = [str(file) for file in Path(self._path).glob("*.db") if _has_content(file)]
        joined: Iterable[Metric] = self.merge(files, accumulate=True)  # type: ignore[no-untyped-call]
        return joined


def _has_content(file: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):  # a worker that ends removes its own
        return file.stat().st_size > 0
    return False


class _LoadCollector(Collector):
    """Gauges that are read at each scrape."""

    def __init__(self, read: Callable[[], Load]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """The load now."""
        load = self._read()
        yield GaugeMetricFamily(
            "triptych_queue_size", "Calls waiting to be sent to Triton.", load.queued
        )
        yield GaugeMetricFamily(
            "triptych_tokens_in_flight", "Input tokens of admitted requests.", load.tokens
        )
        yield GaugeMetricFamily("triptych_workers", "Processes that serve.", load.workers)
        yield CounterMetricFamily(
            "triptych_worker_restarts",
            "Processes started in place of one that ended.",
            load.worker_restarts,
        )


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
    metrics.count_answer(route, duration_s, failure)
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

    def note_plan(self) -> None:
        """Note that the request has its first plan."""
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
