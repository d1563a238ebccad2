"""The span of one call to a model, where its request is traced."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from inference.errors import ServingError
from inference.sequences import Finished
from inference.tasks.shared.model_calls import Call, InferCall, Outcome
from serving.gateway.observability.trace_context import TRACE, Attribute, Trace


class CallSpan:
    """A call from the moment it is queued; without a trace, nothing is recorded."""

    def __init__(self, trace: Trace | None) -> None:
        self._trace = trace
        self._queued_s = time.monotonic()
        self._has_begun = False

    def sent(self, sent_s: float) -> None:
        """The call was sent to Triton at that monotonic time."""
        if self._trace is not None:
            self._trace.phase("queue", self._queued_s, sent_s)

    def chunk(self) -> None:
        """A chunk of a stream has arrived."""
        if self._trace is not None and not self._has_begun:
            self._has_begun = True
            self._trace.event("first chunk")

    def finished(self, outcome: Outcome) -> None:
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
