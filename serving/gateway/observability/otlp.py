"""Spans of requests, exported over OTLP by OpenTelemetry's SDK. Imported only when it is enabled.

Spans have routes, models, sizes and error names; never texts, keys, or paths that a client chose.
"""

from __future__ import annotations

import logging
import threading
import time
from urllib.parse import urlsplit

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind

from serving.gateway.observability.trace_context import Trace, TraceContext, Tracer
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
        above = parent.otel_context if parent else None
        span = self._tracer.start_span("request", above, SpanKind.SERVER)
        return Trace(TraceContext.of(span), span, self._tracer)

    def close(self, timeout_s: float) -> None:
        """Export what is left; spans of a collector that does not respond are lost."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(timeout_s)


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
