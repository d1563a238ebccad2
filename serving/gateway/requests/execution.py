"""Execution of plans: admission, turns at Triton, deadlines, and work that leaves the event loop.

prepare (thread pool) → admitted by tokens → calls, each in its turn → finish (thread pool).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager, aclosing
from dataclasses import replace
from typing import TypeVar

from inference.errors import DeadlineExceeded, ServingError, Unavailable
from inference.sequences import Finished
from inference.tasks.shared.model_calls import (
    Call,
    GenerateCall,
    InferCall,
    Outcome,
    Result,
)
from inference.tasks.shared.served_task import Plan
from inference.tasks.shared.streaming import Streaming
from serving.gateway.admission.admission import Admission, Reserve
from serving.gateway.admission.auth import KEY
from serving.gateway.admission.counts import Counts, LocalCounts
from serving.gateway.admission.deadline import TIMEOUT_S
from serving.gateway.admission.task_threads import TaskThreads
from serving.gateway.observability.call_spans import call_span
from serving.gateway.observability.metrics import Metrics
from serving.gateway.observability.timings import Timings
from serving.gateway.observability.token_latency import SequenceLatency, TokenLatency
from serving.gateway.observability.trace_context import TRACE
from serving.gateway.requests.chunk_stream import ChunkStream
from serving.gateway.requests.stop_reading import until_stopped
from serving.gateway.requests.task_request import Answer
from serving.gateway.triton_client.dynamic_batcher import DynamicBatcher
from serving.gateway.triton_client.inference import Inference
from serving.gateway.triton_client.triton_errors import NotLoaded, is_not_loaded
from serving.process_pool.pool import ProcessPool
from serving.process_pool.process import WorkLimits
from serving.settings.gateway_settings import GatewaySettings
from triptych.messages import Chunk

T = TypeVar("T")
Prepare = Callable[[Reserve], Awaitable[Plan]]
"""Makes a request's plan, once its pixels have been reserved."""
PrepareAgain = Callable[[Call], Awaitable[Prepare | None]]
"""Given a call whose model version Triton does not have: how the request's plan is made for the
version that is served by now; None if there is no other."""

INLINE_LIMIT = 4096
"""Characters, bytes or numbers: up to this size work is done on the event loop. Handing it to a
thread and back takes longer, especially while the engine occupies the cores."""
PROCESSOR_S = 15
"""Processor time of one image or document; usual ones take less than one second."""
STREAM_PRIORITY = 10
"""Priority of streams in the engine; of other requests 0."""


async def _never(call: Call) -> None:
    return None


class Execution:
    """Runs plans. Lives on one event loop; plans are made and finished in its thread pool.

    Args:
        inference: Runs the models; closed by `close`.
        settings: Limits.
        metrics: Timings are recorded there.
        counts: What is admitted now, if other processes admit requests too.
    """

    def __init__(
        self,
        inference: Inference,
        settings: GatewaySettings,
        metrics: Metrics,
        counts: Counts | None = None,
    ) -> None:
        self.inference = inference
        self.is_draining = False
        self.last_result_s: dict[str, float] = {}
        """Model (of Triton) → monotonic time of its last result."""
        self._metrics = metrics
        self._timeout_s = settings.request_timeout
        self._threads = TaskThreads()
        self._processes = ProcessPool(
            settings.own_processes, WorkLimits(settings.work_memory, PROCESSOR_S)
        )
        counts = counts or LocalCounts()
        self._admission = Admission(
            max_requests=settings.max_concurrent_requests,
            max_tokens=settings.max_concurrent_tokens,
            max_pixels=settings.max_concurrent_pixels,
            max_bytes=settings.max_concurrent_bytes,
            max_sequences=settings.max_concurrent_sequences,
            counts=counts,
        )
        self._batcher = DynamicBatcher(
            inference.infer,
            metrics,
            max_calls=settings.max_calls_per_model,
            max_tokens=settings.max_batch_tokens,
        )
        metrics.read_load = lambda: counts.load(self.waiting)

    @property
    def waiting(self) -> int:
        """Calls of this process that wait to be sent to Triton."""
        return self._admission.waiting + self._batcher.waiting

    def body(self) -> AbstractContextManager[Reserve]:
        """Reservation of the bytes of a request's body (`Admission.body`)."""
        return self._admission.body()

    async def in_pool(self, size: int | None, work: Callable[..., T], *arguments: object) -> T:
        """Run work off the event loop, unless it is small.

        Args:
            size: Size of the work (`INLINE_LIMIT`, `task_threads.LARGE`); None: between both.
            work: A function.
            arguments: Its arguments.
        """
        if size is not None and size <= INLINE_LIMIT:
            return work(*arguments)
        return await self._threads.run(size, work, *arguments)

    def start_processes(self) -> None:
        """Start the processes of `in_process` in the background, before they are needed."""
        self._processes.start()

    async def in_process(self, expected_s: float, work: Callable[..., T], *arguments: object) -> T:
        """Run work that cannot be cancelled in a process, which is killed at the deadline.

        Args:
            expected_s: Seconds that it will take, about.
            work: A function of a module.
            arguments: Its arguments.

        Raises:
            InvalidRequest: it takes more than it may.
        """
        key = KEY.get()
        return await self._processes.run(
            work, *arguments, expected_s=expected_s, key=key.name if key else None
        )

    def check(self) -> None:
        """Refuse a request before its body is read, if it would be refused anyway.

        Raises:
            Overloaded: too many requests.
            Unavailable: the gateway is shutting down.
        """
        self._refuse_if_draining()
        self._admission.check()

    async def answer(
        self,
        prepare: Prepare,
        route: str,
        prepare_again: PrepareAgain = _never,
    ) -> Answer:
        """The response of one request.

        Args:
            prepare: Makes its plan.
            route: Label of the metrics.
            prepare_again: Awaited once if Triton does not have the version of one of the calls.

        Raises:
            ServingError: refused, out of time, or no item succeeded.
        """
        self._refuse_if_draining()
        with self._admission.request(), self._admission.pixels() as reserve:
            return await self._within_deadline(self._run(prepare, reserve, route, prepare_again))

    def stream(
        self,
        prepare: Prepare,
        route: str,
        prepare_again: PrepareAgain = _never,
    ) -> ChunkStream:
        """The chunks of one request; it is admitted when the stream is first awaited.

        Raises:
            Unavailable: the gateway is shutting down.
        """
        self._refuse_if_draining()

        async def produce(stream: ChunkStream) -> None:
            with self._admission.request(), self._admission.pixels() as reserve:
                work = self._run_stream(prepare, reserve, route, stream, prepare_again)
                await stream.finish(self._within_deadline(work))

        return ChunkStream(produce)

    async def perform(
        self, call: Call, timeout_s: float, latency: TokenLatency | None = None
    ) -> Result:
        """One call by itself, without admission: it is neither queued nor joined.

        Args:
            call: The call.
            timeout_s: Its time limit.
            latency: Token times of a call that a stop string may end.

        Raises:
            ServingError: the call failed.
        """
        result: Result
        if isinstance(call, InferCall):
            result = await self.inference.infer(call, timeout_s)
        elif call.read is None:
            result = await self.inference.generate(call, timeout_s)
        else:
            stream = self.inference.stream(call, timeout_s)
            result = await until_stopped(stream, call, call.read(), latency)
        self.last_result_s[call.model] = time.monotonic()
        return result

    async def drained(self, timeout_s: float) -> bool:
        """Wait until no request is left; False if the time is up before."""
        return await self._admission.drained(timeout_s)

    def abort_all(self) -> int:
        """End every request with an error; how many there were."""
        return self._admission.abort_all()

    async def close(self) -> None:
        """Release threads, processes and connections."""
        self._processes.close()
        self._threads.close()
        await self._batcher.close()
        await self.inference.close()

    async def _run(
        self, prepare: Prepare, reserve: Reserve, route: str, prepare_again: PrepareAgain
    ) -> Answer:
        started_s = time.monotonic()
        deadline_s = started_s + self._limit_s()
        latency = TokenLatency(self._metrics, route, started_s)
        trace = TRACE.get()
        plan = await prepare(reserve)
        tokenized_s = time.monotonic()
        if trace is not None:
            trace.phase("preprocess", started_s, tokenized_s)
        turns = await self._turns(plan, deadline_s, latency)
        for call, (outcome, _) in zip(plan.calls, turns, strict=True):
            if is_not_loaded(outcome):
                if again := await prepare_again(call):
                    plan = await again(reserve)
                    turns = await self._turns(plan, deadline_s, latency)
                break
        done_s = time.monotonic()
        outcomes = [outcome for outcome, _ in turns]
        response = await self.in_pool(plan.finish_size(outcomes), plan.finish, outcomes)
        if trace is not None:
            trace.phase("postprocess", done_s, time.monotonic())
        # A plan without calls has everything cached.
        starts = [turn_s for _, turn_s in turns] or [done_s]
        timings = Timings(
            tokenization_s=tokenized_s - started_s,
            queue_s=max(starts) - tokenized_s,
            inference_s=done_s - min(starts),
        )
        self._metrics.observe_timings(route, timings)
        return Answer(response, timings)

    async def _turns(
        self, plan: Plan, deadline_s: float, latency: TokenLatency
    ) -> list[tuple[Outcome, float]]:
        """The outcome of each call of a plan, and the time it was sent."""
        with self._admission.reserved(sum(call.tokens for call in plan.calls)):
            if len(plan.calls) == 1:  # most requests: a task of its own takes longer to make
                return [await self._turn(plan.calls[0], deadline_s, latency)]
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._turn(c, deadline_s, latency)) for c in plan.calls]
        return [task.result() for task in tasks]

    async def _turn(
        self, call: Call, deadline_s: float, latency: TokenLatency
    ) -> tuple[Outcome, float]:
        """A call's outcome, and the time it was sent."""
        with call_span(call) as span:
            outcome, sent_s = await self._sent(call, deadline_s, latency)
            span.sent(sent_s)
            span.finished(outcome)
            return outcome, sent_s

    async def _sent(
        self, call: Call, deadline_s: float, latency: TokenLatency
    ) -> tuple[Outcome, float]:
        if isinstance(call, InferCall):
            remaining_s = max(0.001, deadline_s - time.monotonic())
            outcome, sent_s = await self._batcher.outcome(call, remaining_s)
            if not isinstance(outcome, ServingError):
                self.last_result_s[call.model] = time.monotonic()
            return outcome, sent_s
        async with self._admission.turn():
            turn_s = time.monotonic()
            try:
                return await self.perform(call, max(0.001, deadline_s - turn_s), latency), turn_s
            except ServingError as error:
                return error, turn_s

    async def _run_stream(
        self,
        prepare: Prepare,
        reserve: Reserve,
        route: str,
        stream: ChunkStream,
        prepare_again: PrepareAgain,
    ) -> None:
        """Send the chunks of a request as its calls run.

        Raises:
            ServingError: no item succeeded, or the request as a whole failed.
        """
        started_s = time.monotonic()
        latency = TokenLatency(self._metrics, route, started_s)
        plan = await prepare(reserve)
        refused: NotLoaded | None = None
        try:
            await self._stream_plan(plan, route, stream, latency, started_s)
        except* NotLoaded as refusals:
            refused = next(e for e in refusals.exceptions if isinstance(e, NotLoaded))
        if refused is None:
            return
        again = None if stream.has_sent else await prepare_again(refused.call)
        if again is None:
            raise refused.error
        plan = await again(reserve)
        stream.is_second_attempt = True
        await self._stream_plan(plan, route, stream, latency, started_s)

    async def _stream_plan(
        self, plan: Plan, route: str, stream: ChunkStream, latency: TokenLatency, started_s: float
    ) -> None:
        tokenized_s = time.monotonic()
        if (trace := TRACE.get()) is not None:
            trace.phase("preprocess", started_s, tokenized_s)
        streaming = plan.streaming()

        async def turn(number: int) -> float:
            with call_span(plan.calls[number]) as span:
                async with self._admission.stream_turn():
                    turn_s = time.monotonic()
                    span.sent(turn_s)
                    timeout_s = started_s + self._limit_s() - turn_s
                    chunks = self._chunks(
                        number, plan, streaming, timeout_s, latency.sequence(), stream
                    )
                    async with aclosing(chunks):
                        async for ready in chunks:
                            if ready:
                                span.chunk()
                            if ready and stream.timings is None:
                                stream.timings = timings(turn_s, turn_s)
                            await stream.send(ready)
                    return turn_s

        def timings(first_s: float, last_s: float) -> Timings:
            inference_s = time.monotonic() - first_s
            return Timings(tokenized_s - started_s, last_s - tokenized_s, inference_s)

        with self._admission.reserved(sum(call.tokens for call in plan.calls)):
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(turn(number)) for number in range(len(plan.calls))]
        if streaming.failure:
            raise streaming.failure
        turns = [task.result() for task in tasks]
        self._metrics.observe_timings(route, timings(min(turns), max(turns)))

    async def _chunks(
        self,
        number: int,
        plan: Plan,
        streaming: Streaming,
        timeout_s: float,
        latency: SequenceLatency,
        sent: ChunkStream,
    ) -> AsyncGenerator[list[Chunk], None]:
        """One call's chunks; the call is ended as soon as no more of it is needed.

        Raises:
            NotLoaded: the request can be prepared again.
        """
        if not streaming.needs(number):
            return
        call = plan.calls[number]
        assert isinstance(call, GenerateCall)
        options = call.options.model_copy(update={"priority": STREAM_PRIORITY})
        call = replace(call, options=options)
        try:
            if streaming.is_whole(number):
                yield streaming.settle(number, await self.perform(call, max(0.001, timeout_s)))
                return
            async with aclosing(self.inference.stream(call, max(0.001, timeout_s))) as stream:
                async for tokens in stream:
                    if isinstance(tokens, Finished):
                        self.last_result_s[call.model] = time.monotonic()
                        yield streaming.end(number, tokens)
                        return
                    latency.observe(len(tokens.token_ids))
                    yield streaming.add(number, tokens)
                    if not streaming.needs(number):
                        yield streaming.end(number)
                        return
        except ServingError as error:
            if is_not_loaded(error) and not sent.has_sent and not sent.is_second_attempt:
                raise NotLoaded(call, error) from error
            yield streaming.fail(number, error)

    async def _within_deadline(self, work: Awaitable[T]) -> T:
        limit_s = self._limit_s()
        try:
            async with asyncio.timeout(limit_s):
                return await work
        except TimeoutError:
            raise DeadlineExceeded(
                f"no response within {limit_s:g} s: send a smaller request"
            ) from None

    def _limit_s(self) -> float:
        """Time of the current request: the gateway's limit, or its client's."""
        return min(self._timeout_s, TIMEOUT_S.get())

    def _refuse_if_draining(self) -> None:
        if self.is_draining:
            raise Unavailable("the gateway is shutting down: try another", retry_after_s=1)
