"""Joins stateless calls of concurrent requests, so that many small requests share one.

A version of a model has a few calls in flight: one for each instance, and one that is ready when an
instance becomes free. While there are fewer, a call is sent at once, so nothing waits at low load.
Otherwise it waits until one returns; the next one has the rows of all waiting calls that fit. So
the wait is bounded by the duration of the calls in flight, and the higher the load, the more rows
share a call. There is no timer: waiting for calls that may arrive would delay those that have.

Triton's batcher joins only calls that wait there at the same instant, and a small request costs
each process a whole call (D57).
"""

from __future__ import annotations

import asyncio
import copy
import time
from bisect import insort
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter

import numpy as np

from inference.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    ServingError,
    Unavailable,
)
from inference.tasks.shared.model_calls import MAX_ROWS, InferCall, Outcome, Outputs
from serving.gateway.observability.metrics import Metrics
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
    since_s: float
    """Its place in the order: when it arrived, less its priority in seconds."""
    trace: Trace | None = field(default_factory=TRACE.get)
    """Of the caller."""
    bucket: Hashable = field(init=False)
    """Equal for calls that can be one batch: outputs, and the name, type and trailing shape of each
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
    """Waiting calls in buckets, each in order."""

    def __init__(self) -> None:
        self._buckets: dict[Hashable, list[QueuedCall]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    def add(self, queued: QueuedCall) -> None:
        """Insert a call into its bucket."""
        bucket = self._buckets.setdefault(queued.bucket, [])
        insort(bucket, queued, key=attrgetter("since_s"))

    def remove(self, queued: QueuedCall) -> bool:
        """Drop a call whose caller has left; False if it does not wait any more."""
        bucket = self._buckets.get(queued.bucket)
        if bucket is None or queued not in bucket:
            return False
        bucket.remove(queued)
        if not bucket:
            del self._buckets[queued.bucket]
        return True

    def take(self, max_tokens: int) -> list[QueuedCall]:
        """The calls that are sent together next: of the bucket whose first call is next in order.

        So no bucket starves. One call is taken whatever its size, further ones while rows and
        tokens are within `MAX_ROWS` and `max_tokens`.
        """
        if not self._buckets:
            return []
        bucket = min(self._buckets.values(), key=lambda calls: calls[0].since_s)
        taken: list[QueuedCall] = []
        rows = tokens = 0
        while bucket:
            rows += bucket[0].call.rows
            tokens += bucket[0].call.tokens
            if taken and (rows > MAX_ROWS or tokens > max_tokens):
                break
            taken.append(bucket.pop(0))
        if not bucket:
            del self._buckets[taken[0].bucket]
        return taken


def concatenate(calls: Sequence[InferCall]) -> InferCall:
    """One call with the rows of several calls of one bucket, in their order."""
    first = calls[0]
    if len(calls) == 1:
        return first
    inputs = {name: np.concatenate([call.inputs[name] for call in calls]) for name in first.inputs}
    return replace(first, inputs=inputs)


def split_outputs(outputs: Outputs, calls: Sequence[InferCall]) -> Iterator[Outputs]:
    """Each call's rows of the outputs of their batch.

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


READY_CALLS = 1
"""In flight beyond one for each instance: it is there when an instance becomes free."""

Infer = Callable[[InferCall, float], Awaitable[Outputs]]
"""Runs a call within a number of seconds."""


class DynamicBatcher:
    """Sends stateless calls, in batches where they wait. Used on one event loop.

    Args:
        infer: Runs a call.
        infer_batch: Runs several calls as one; if their model ends meanwhile, each of them is run
            by `infer`. None: they fail.
        metrics: Rows and batched calls are counted there.
        max_calls: In flight, of each version of a model; None: one more than it has instances.
        max_tokens: Of a batch, padding included; a call that has more is sent alone.
        replicas: Servers that have a version of a model; each has its instances.
    """

    def __init__(
        self,
        infer: Infer,
        metrics: Metrics,
        *,
        max_calls: int | None,
        max_tokens: int,
        infer_batch: Infer | None = None,
        replicas: Callable[[str, int], int] = lambda model, version: 1,
    ) -> None:
        self._infer = infer
        self._infer_batch = infer_batch
        self._metrics = metrics
        self._max_calls = max_calls
        self._max_tokens = max_tokens
        self._replicas = replicas
        self._queues: dict[tuple[str, int], _ModelQueue] = {}

    @property
    def waiting(self) -> int:
        """Calls that are not sent yet."""
        return sum(len(queue.waiting) for queue in self._queues.values())

    async def outcome(
        self, call: InferCall, timeout_s: float, priority: int = 0
    ) -> tuple[Outcome, float]:
        """The outcome of a call, and the monotonic time at which it was sent.

        A priority is a head start in seconds, as in the engine. If the caller is cancelled, a
        waiting call is dropped; one in flight goes on for the other callers that share it, and is
        cancelled when the last of them has left.
        """
        now_s, loop = time.monotonic(), asyncio.get_running_loop()
        result: asyncio.Future[tuple[Outcome, float]] = loop.create_future()
        queued = QueuedCall(call, now_s + timeout_s, result, now_s - priority)
        key = call.model, call.version
        if (queue := self._queues.get(key)) is None:
            forget = partial(self._queues.pop, key, None)
            queue = self._queues[key] = _ModelQueue(
                self._run, forget, partial(self._most_calls, call), self._max_tokens
            )
        queue.add(queued)

        def give_up() -> None:
            queued.settle(DeadlineExceeded(f"{call.model} did not finish in time"), now_s)
            queue.leave(queued)

        timer = loop.call_later(timeout_s, give_up)
        try:
            return await result
        finally:
            timer.cancel()
            if result.cancelled():
                queue.leave(queued)

    async def close(self) -> None:
        """End all calls; callers that are left get an error."""
        for queue in list(self._queues.values()):
            await queue.close()
        self._queues.clear()

    def _most_calls(self, call: InferCall) -> int:
        """In flight now, of the version of a call."""
        instances = call.instances * self._replicas(call.model, call.version)
        return self._max_calls or instances + READY_CALLS

    async def _run(self, calls: Sequence[QueuedCall], sent_s: float | None = None) -> None:
        """Run calls as one; if that fails by an error of a row, its halves, down to single calls.

        Args:
            calls: Of one bucket.
            sent_s: When they were first sent.
        """
        calls = [queued for queued in calls if not queued.result.done()]
        if not calls:
            return
        now_s = time.monotonic()
        sent_s = sent_s or now_s
        whole = concatenate([queued.call for queued in calls])
        self._metrics.observe_call(whole.model, whole.rows, len(calls))
        timeout_s = max(0.001, max(queued.deadline_s for queued in calls) - now_s)
        # Triton takes one parent a call: the first caller's whose trace is recorded.
        traces = [queued.trace for queued in calls if queued.trace is not None]
        TRACE.set(next((trace for trace in traces if trace.context.is_sampled), None))
        try:
            infer = self._infer_batch if len(calls) > 1 else None
            outputs = await (infer or self._infer)(whole, timeout_s)
        except ServingError as error:
            if infer is not None and isinstance(error, Unavailable):
                for queued in calls:
                    await self._run([queued], sent_s)
                return
            if len(calls) > 1 and isinstance(error, InvalidRequest | InternalError):
                half = len(calls) // 2
                await self._run(calls[:half], sent_s)
                await self._run(calls[half:], sent_s)
                return
            for queued in calls:
                queued.settle(copy.copy(error), sent_s)
            return
        parts = split_outputs(outputs, [queued.call for queued in calls])
        for queued, part in zip(calls, parts, strict=True):
            queued.settle(part, sent_s)


class _ModelQueue:
    """Calls of one version of a model: those that wait, and those in flight.

    Args:
        run: Sends calls of one bucket and settles their results.
        on_idle: Called when nothing waits and nothing is in flight any more.
        max_calls: Reads how many may be in flight.
        max_tokens: Of a batch.
    """

    def __init__(
        self,
        run: Callable[[Sequence[QueuedCall]], Awaitable[None]],
        on_idle: Callable[[], object],
        max_calls: Callable[[], int],
        max_tokens: int,
    ) -> None:
        self.waiting = CallQueue()
        self._run = run
        self._on_idle = on_idle
        self._max_calls = max_calls
        self._max_tokens = max_tokens
        self._in_flight: dict[asyncio.Task[None], list[QueuedCall]] = {}
        self._is_starting = False
        """A task has been created and has not taken its calls yet."""

    def add(self, queued: QueuedCall) -> None:
        """Send a call, now or when one in flight has returned."""
        self.waiting.add(queued)
        self._start()

    def leave(self, queued: QueuedCall) -> None:
        """Drop a call whose caller has left."""
        if self.waiting.remove(queued):
            return
        for task, calls in self._in_flight.items():
            if queued in calls and all(each.result.done() for each in calls):
                task.cancel()

    async def close(self) -> None:
        """End everything."""
        now_s = time.monotonic()
        calls = [queued for some in self._in_flight.values() for queued in some]
        while taken := self.waiting.take(self._max_tokens):
            calls += taken
        for queued in calls:
            queued.settle(Unavailable("the gateway was shut down", retry_after_s=1), now_s)
        tasks = list(self._in_flight)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self) -> None:
        """Start the next call; it also takes what is added in this turn of the event loop."""
        if self.waiting and not self._is_starting and len(self._in_flight) < self._max_calls():
            self._is_starting = True
            task = asyncio.get_running_loop().create_task(self._send())
            self._in_flight[task] = []

    async def _send(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._is_starting = False
        calls = self._in_flight[task] = self.waiting.take(self._max_tokens)
        self._start()
        try:
            await self._run(calls)
        except Exception as error:  # a bug: no caller may wait for ever
            for queued in calls:
                queued.fail(error)
        finally:
            del self._in_flight[task]
            self._start()
            if not self._in_flight:
                self._on_idle()
