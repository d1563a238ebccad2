"""Waiting stateless calls of one version of a model, and how several of them become one.

Triton's batcher joins only calls that wait there at the same instant, and a small request costs
each process a whole call (D57).
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from inference.tasks.shared.model_calls import MAX_ROWS, InferCall, Outcome, Outputs
from serving.gateway.observability.trace_context import TRACE, Trace

_COPY_BYTES = 1 << 20


@dataclass(eq=False)
class QueuedCall:
    """One caller's call.

    Attributes:
        deadline_s: Time at which a queued call is given up, on the monotonic clock.
        result: The outcome and the time at which the call was sent; done early if the caller has
            left.
    """

    call: InferCall
    deadline_s: float
    result: asyncio.Future[tuple[Outcome, float]]
    number: int = -1
    """Position in the order of arrival."""
    trace: Trace | None = field(default_factory=TRACE.get)
    """Of the caller."""
    bucket: Hashable = field(init=False)
    """Equal for calls that can be joined: outputs, and the name, type and trailing shape of each
    input."""

    def __post_init__(self) -> None:
        inputs = self.call.inputs.items()
        shapes = tuple((name, array.dtype, array.shape[1:]) for name, array in inputs)
        self.bucket = (tuple(self.call.outputs.items()), shapes)

    def settle(self, outcome: Outcome, sent_s: float) -> None:
        """Hand the caller the outcome, unless it has left."""
        if not self.result.done():
            self.result.set_result((outcome, sent_s))

    def fail(self, error: Exception) -> None:
        """Raise a bug's exception in the caller, unless it has left."""
        if not self.result.done():
            self.result.set_exception(error)


class CallQueue:
    """Waiting calls in buckets; each bucket is first in, first out."""

    def __init__(self) -> None:
        self._buckets: dict[Hashable, deque[QueuedCall]] = {}
        self._numbers = itertools.count()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, queued: QueuedCall) -> None:
        """Append a call to its bucket."""
        queued.number = next(self._numbers)
        self._buckets.setdefault(queued.bucket, deque()).append(queued)
        self._size += 1

    def remove(self, queued: QueuedCall) -> bool:
        """Drop a call whose caller has left; False if it does not wait any more."""
        bucket = self._buckets.get(queued.bucket)
        if bucket is None or queued not in bucket:
            return False
        bucket.remove(queued)
        self._size -= 1
        if not bucket:
            del self._buckets[queued.bucket]
        return True

    def take(self, max_tokens: int) -> list[QueuedCall]:
        """The calls that are sent together next: of the bucket whose first call is the oldest.

        So no bucket starves. One call is taken whatever its size, further ones while rows and
        tokens are within `MAX_ROWS` and `max_tokens`.
        """
        if not self._buckets:
            return []
        bucket = min(self._buckets.values(), key=lambda calls: calls[0].number)
        taken: list[QueuedCall] = []
        rows = tokens = 0
        while bucket:
            rows += bucket[0].call.rows
            tokens += bucket[0].call.tokens
            if taken and (rows > MAX_ROWS or tokens > max_tokens):
                break
            taken.append(bucket.popleft())
        self._size -= len(taken)
        if not bucket:
            del self._buckets[taken[0].bucket]
        return taken


def joined(calls: Sequence[InferCall]) -> InferCall:
    """One call with the rows of several calls of one bucket, in their order."""
    first = calls[0]
    if len(calls) == 1:
        return first
    inputs = {name: np.concatenate([call.inputs[name] for call in calls]) for name in first.inputs}
    return replace(first, inputs=inputs)


def divided(outputs: Outputs, calls: Sequence[InferCall]) -> Iterator[Outputs]:
    """Each call's rows of the outputs of the joined call.

    Small ones are copies, so that a row that a caller keeps does not keep the whole batch.
    """
    if len(calls) == 1:
        yield outputs
        return
    start = 0
    for call in calls:
        rows = slice(start, start + call.rows)
        parts = {role: array[rows] for role, array in outputs.items()}
        yield {
            role: part.copy() if part.nbytes < _COPY_BYTES else part for role, part in parts.items()
        }
        start = rows.stop
