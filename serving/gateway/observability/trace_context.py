"""W3C trace context: which trace a request belongs to (https://www.w3.org/TR/trace-context-2/).

The gateway decides what is traced. Without an exporter the client's context is passed on as it
came: a span that is not exported would cut the trace.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from opentelemetry import trace as api
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from inference.errors import ServingError
from inference.generation import Finished
from inference.tasks.shared.model_calls import Call, InferCall, Outcome

# It warns of each header that is not valid, with its text, which a client chose.
logging.getLogger(api.__name__).setLevel(logging.ERROR)

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
TRACERESPONSE = "traceresponse"
"""Header of responses: the request's own trace and span."""

_PROPAGATOR = TraceContextTextMapPropagator()
_KNOWN_FLAGS = 0b11

Attribute = str | int | float


@dataclass(frozen=True)
class TraceContext:
    """A span: its trace, its id, the flags and the vendors' state that are passed on with it."""

    trace_id: str
    span_id: str
    flags: int
    state: str = ""

    @classmethod
    def of(cls, span: Span) -> TraceContext:
        """That of a span of OpenTelemetry."""
        found = span.get_span_context()
        ids = api.format_trace_id(found.trace_id), api.format_span_id(found.span_id)
        return cls(*ids, found.trace_flags & _KNOWN_FLAGS, found.trace_state.to_header())

    @property
    def otel_context(self) -> Context:
        """A context of OpenTelemetry in which this span is the parent of others."""
        return _PROPAGATOR.extract(self.headers())

    @property
    def is_sampled(self) -> bool:
        """Whether the trace is recorded."""
        return bool(self.flags & api.TraceFlags.SAMPLED)

    @property
    def traceparent(self) -> str:
        """The header that makes this span the parent of what its receiver does."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"

    def headers(self) -> dict[str, str]:
        """The headers of a request that this span makes."""
        given = {TRACEPARENT: self.traceparent, TRACESTATE: self.state}
        return {name: value for name, value in given.items() if value}


def parse(parents: Sequence[str], states: Sequence[str]) -> TraceContext | None:
    """The context of a request's headers; None if there is none, or an invalid one.

    Args:
        parents: Values of `traceparent`; several are invalid.
        states: Values of `tracestate`; left out as a whole if one is invalid.
    """
    if len(parents) != 1:
        return None
    found = _PROPAGATOR.extract({TRACEPARENT: list(parents), TRACESTATE: list(states)})
    span = api.get_current_span(found)
    return TraceContext.of(span) if span.get_span_context().is_valid else None


class Trace:
    """The trace of one request: a span, and those below it.

    Args:
        context: Of the span.
        span: It records; None: it only passes on its client's context, unchanged.
        tracer: Of the span.
    """

    def __init__(
        self, context: TraceContext, span: Span | None = None, tracer: api.Tracer | None = None
    ) -> None:
        self.context = context
        self._span = span or api.get_current_span(context.otel_context)
        self._tracer = tracer or api.NoOpTracer()

    def annotate(self, attributes: Mapping[str, Attribute]) -> None:
        """Add attributes to the span, never users' texts."""
        self._span.set_attributes(attributes)

    def event(self, name: str) -> None:
        """Mark this moment in the span."""
        self._span.add_event(name)

    def phase(self, name: str, start_s: float, end_s: float) -> None:
        """Record what has been done from one monotonic time to another as a span below this one."""
        above = api.set_span_in_context(self._span)
        span = self._tracer.start_span(name, above, start_time=_wall_ns(start_s))
        span.end(_wall_ns(end_s))

    @contextmanager
    def span(self, name: str, attributes: Mapping[str, Attribute]) -> Iterator[Trace]:
        """A span below this one, `TRACE` of what is done in the block."""
        above = api.set_span_in_context(self._span)
        span = self._tracer.start_span(name, above, SpanKind.CLIENT, attributes)
        below = Trace(TraceContext.of(span), span, self._tracer)
        token = TRACE.set(below)
        try:
            yield below
        finally:
            TRACE.reset(token)
            span.end()

    def end(self, name: str, failure: str | None, *, is_fault: bool) -> None:
        """The request has ended.

        Args:
            name: What the span is called.
            failure: Name of its error.
            is_fault: Whether the error is the server's.
        """
        self._span.update_name(name)
        if failure is not None:
            self._span.set_attribute("error.type", failure)
        if is_fault:
            self._span.set_status(StatusCode.ERROR)
        self._span.end()


def _wall_ns(monotonic_s: float) -> int:
    return time.time_ns() - int((time.monotonic() - monotonic_s) * 1e9)


class Tracer:
    """Begins traces. This one records nothing."""

    def begin(self, parent: TraceContext | None) -> Trace | None:
        """The trace of a request that starts now.

        Args:
            parent: What the client sent.
        """
        return Trace(parent) if parent else None

    def close(self, timeout_s: float) -> None:
        """Export what is left, within that time."""


TRACE: ContextVar[Trace | None] = ContextVar("trace", default=None)
"""The trace of the request that the current task serves."""


def metadata() -> dict[str, str] | None:
    """Headers of a request to Triton; None if it need not trace it.

    Triton traces each request that has these headers, whatever their flag says
    (triton-inference-server/server#8474), so they are sent for sampled traces only.
    """
    trace = TRACE.get()
    return trace.context.headers() if trace and trace.context.is_sampled else None


class CallSpan:
    """A call from the moment it is queued; without a trace, nothing is recorded."""

    def __init__(self, trace: Trace | None) -> None:
        self._trace = trace
        self._queued_s = time.monotonic()
        self._has_begun = False

    def note_sent(self, sent_s: float) -> None:
        """The call was sent to Triton at that monotonic time."""
        if self._trace is not None:
            self._trace.phase("queue", self._queued_s, sent_s)

    def chunk(self) -> None:
        """A chunk of a stream has arrived."""
        if self._trace is not None and not self._has_begun:
            self._has_begun = True
            self._trace.event("first chunk")

    def note_finished(self, outcome: Outcome) -> None:
        """The call has its outcome."""
        if self._trace is None:
            return
        if isinstance(outcome, ServingError):
            self._trace.annotate({"error.type": outcome.wire})
        elif isinstance(outcome, Finished):
            self._trace.annotate({"triptych.completion_tokens": outcome.generated_tokens})


@contextmanager
def call_span(call: Call) -> Iterator[CallSpan]:
    """The span of a call; within the block it is the parent of what Triton does."""
    trace = TRACE.get()
    if trace is None:
        yield CallSpan(None)
        return
    with trace.span(call.model, _attributes(call)) as span:
        yield CallSpan(span)


def _attributes(call: Call) -> dict[str, Attribute]:
    attributes: dict[str, Attribute] = {
        "triptych.triton_model": call.model,
        "triptych.version": call.version,
        "triptych.tokens": call.tokens,
    }
    return attributes | ({"triptych.rows": call.rows} if isinstance(call, InferCall) else {})
