"""Spans of requests, exported over OTLP by OpenTelemetry's SDK. Imported only when it is enabled.

Spans have routes, models, sizes and error names; never texts, keys, or paths that a client chose.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

import requests
from opentelemetry import trace as api
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, StatusCode
from opentelemetry.trace.span import TraceFlags, TraceState

from serving.gateway.observability.trace_context import (
    TRACE,
    Attribute,
    Trace,
    TraceContext,
    Tracer,
)
from serving.local_http import is_loopback
from triptych import __version__

_PATH = "/v1/traces"
_QUIET_S = 60.0
"""Between two log lines of the exporter about one problem."""


class OtlpTracer(Tracer):
    """Records requests; a thread of the SDK exports them, and drops what exceeds its queue.

    The SDK reads sampling (`OTEL_TRACES_SAMPLER`), the service's name and attributes, headers,
    timeouts and queue sizes from OpenTelemetry's standard environment variables.

    Args:
        endpoint: Base URL of the collector's OTLP over HTTP.
    """

    def __init__(self, endpoint: str) -> None:
        logging.getLogger(OTLPSpanExporter.__module__).addFilter(_OncePerMinute())
        named = {"service.name": "triptych-gateway", "service.version": __version__}
        given = OTELResourceDetector().detect().attributes
        self._provider = TracerProvider(
            resource=Resource.create({**named, **given}), shutdown_on_exit=False
        )
        # Only a collector elsewhere may be behind a proxy of the environment.
        session = requests.Session()
        session.trust_env = not is_loopback(urlsplit(endpoint).hostname)
        exporter = OTLPSpanExporter(endpoint=endpoint.rstrip("/") + _PATH, session=session)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("triptych")

    def begin(self, parent: TraceContext | None) -> Trace:
        """A span of kind server below the client's."""
        context = _sdk_context(parent) if parent else None
        return RecordedTrace(
            self._tracer, self._tracer.start_span("request", context, SpanKind.SERVER)
        )

    def close(self, timeout_s: float) -> None:
        """Export what is left; spans of a collector that does not respond are lost."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(timeout_s)


class RecordedTrace(Trace):
    """A span and those below it."""

    def __init__(self, tracer: api.Tracer, span: Span) -> None:
        super().__init__(_our_context(span.get_span_context()))
        self._tracer = tracer
        self._span = span

    def annotate(self, attributes: Mapping[str, Attribute]) -> None:
        """Add attributes."""
        self._span.set_attributes(attributes)

    def event(self, name: str) -> None:
        """Add an event."""
        self._span.add_event(name)

    def phase(self, name: str, start_s: float, end_s: float) -> None:
        """Add a span that has ended."""
        above = api.set_span_in_context(self._span)
        span = self._tracer.start_span(name, above, start_time=_wall_ns(start_s))
        span.end(_wall_ns(end_s))

    @contextmanager
    def span(self, name: str, attributes: Mapping[str, Attribute]) -> Iterator[Trace]:
        """A span of kind client."""
        above = api.set_span_in_context(self._span)
        span = self._tracer.start_span(name, above, SpanKind.CLIENT, attributes)
        below = RecordedTrace(self._tracer, span)
        token = TRACE.set(below)
        try:
            yield below
        finally:
            TRACE.reset(token)
            span.end()

    def end(self, name: str, failure: str | None, *, is_fault: bool) -> None:
        """Name and end the span."""
        self._span.update_name(name)
        if failure is not None:
            self._span.set_attribute("error.type", failure)
        if is_fault:
            self._span.set_status(StatusCode.ERROR)
        self._span.end()


def _sdk_context(parent: TraceContext) -> Context:
    state = TraceState.from_header([parent.state]) if parent.state else None
    flags = TraceFlags(parent.flags)
    context = SpanContext(int(parent.trace_id, 16), int(parent.span_id, 16), True, flags, state)
    return api.set_span_in_context(NonRecordingSpan(context))


def _our_context(context: SpanContext) -> TraceContext:
    return TraceContext(
        api.format_trace_id(context.trace_id),
        api.format_span_id(context.span_id),
        int(context.trace_flags),
        context.trace_state.to_header(),
    )


def _wall_ns(monotonic_s: float) -> int:
    return time.time_ns() - int((time.monotonic() - monotonic_s) * 1e9)


class _OncePerMinute(logging.Filter):
    """Passes a message of a kind once a minute: a collector that is down is one line a minute."""

    def __init__(self) -> None:
        super().__init__()
        self._last_s: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now_s = time.monotonic()
        if now_s - self._last_s.get(str(record.msg), -_QUIET_S) < _QUIET_S:
            return False
        self._last_s[str(record.msg)] = now_s
        return True
