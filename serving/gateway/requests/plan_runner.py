"""Runs plans: their calls in turn, for a whole response or a stream, each sent until it succeeds.

A plan runs as a `PlanRun`, whose calls a `CallRunner` sends as often as their `RetryPolicy` has it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

from inference.errors import InternalError, ServingError, Unavailable
from inference.generation import Finished, Overrides, TokenChunk
from inference.tasks.shared.model_calls import (
    Call,
    GenerateCall,
    InferCall,
    Outcome,
    Outputs,
    ended_early,
)
from inference.tasks.shared.served_task import Plan
from serving.gateway.admission.admission import Admission, Counts
from serving.gateway.observability.metrics import Metrics, RequestTimes, SequenceLatency
from serving.gateway.observability.trace_context import TRACE, CallSpan, call_span
from serving.gateway.requests.chunk_stream import ChunkStream
from serving.gateway.triton_client.dynamic_batcher import DynamicBatcher
from serving.gateway.triton_client.endpoint import Share
from serving.gateway.triton_client.pool import TritonPool, Work
from serving.gateway.triton_client.retry_policy import Act, ModelCalls, Quarantine, RetryPolicy
from serving.settings.gateway_settings import GatewaySettings
from triptych.messages import Chunk, Response

log = logging.getLogger(__name__)

T = TypeVar("T")
Take = Callable[[TokenChunk], Awaitable[bool]]
"""Takes tokens of a sequence as they are generated; returns whether further ones are needed."""
InPool: TypeAlias = Callable[..., Awaitable[Response[Any]]]
"""Runs work of a size, off the event loop where it is large."""
PlanAgain: TypeAlias = Callable[[Call], Awaitable[Plan | None]]
"""Plans a request for the version that has replaced that of a call; None: there is none."""
MAX_SWITCHES = 3
"""Of its version, that one call of a stream survives."""
STREAM_PRIORITY = 10
"""Priority of streams, for turns and in the engine; of other requests 0."""
LONG_PRIORITY = -60
"""Added to that of long requests: shorter ones pass what they have not begun."""
_SHORT_CALLS, _SHORT_TOKENS = 8, 1024
"""Calls, and tokens for encoders with their padding, of the longest request that is not long."""


class PlanRun:
    """The calls of a plan for a whole response: one that fails leaves the others alone.

    Args:
        runner: Runs its calls.
        admission: Gives their turns.

    Attributes:
        sent_s: When the calls were sent.
        unloaded: A call whose version Triton does not have: the request may be planned again.
    """

    def __init__(
        self, plan: Plan, runner: CallRunner, admission: Admission, times: RequestTimes
    ) -> None:
        self.plan = plan
        self.sent_s: list[float] = []
        self.unloaded: Call | None = None
        self._runner = runner
        self._admission = admission
        self._times = times
        self._outcomes: dict[int, Outcome] = {}
        self._turn = admission.turn
        tokens = sum(call.tokens for call in plan.calls if isinstance(call, InferCall))
        is_long = len(plan.calls) > _SHORT_CALLS or tokens > _SHORT_TOKENS
        self._priority = LONG_PRIORITY if is_long else 0

    async def run(self) -> None:
        """Run all calls; their tokens are reserved until the last one has ended."""
        calls = self.plan.calls
        with self._admission.reserve_tokens(sum(call.tokens for call in calls)):
            await self._admission.agree("tokens")
            if len(calls) == 1:  # most requests: a task of its own takes longer to make
                await self._run(0, calls[0])
                return
            async with asyncio.TaskGroup() as group:
                for number, call in enumerate(calls):
                    group.create_task(self._run(number, call))

    def following(self) -> Plan | None:
        """The plan of calls that the outcomes of these are for.

        Raises:
            ServingError: an outcome that they need is an error.
        """
        return None if self.unloaded else self.plan.following(self._in_order())

    def _in_order(self) -> list[Outcome]:
        return [self._outcomes[number] for number in range(len(self.plan.calls))]

    async def finish(self, in_pool: InPool) -> Response[Any] | None:
        """The response, once the calls have ended; None for a stream.

        Raises:
            ServingError: no item succeeded.
        """
        started_s = time.monotonic()
        outcomes = self._in_order()
        size = self.plan.finish_size(outcomes)
        response = await in_pool(size, self.plan.finish, outcomes)
        if (trace := TRACE.get()) is not None:
            trace.phase("postprocess", started_s, time.monotonic())
        return response

    async def _run(self, number: int, call: Call) -> None:
        with call_span(call) as span:
            outcome: Outcome | None
            if isinstance(call, InferCall):
                outcome, sent_s = await self._runner.infer(call, self._times.left_s, self._priority)
                span.note_sent(sent_s)
            else:
                async with self._turn(self._priority):
                    sent_s = time.monotonic()
                    span.note_sent(sent_s)
                    outcome = await self._generate(number, call, span, sent_s)
            self.sent_s.append(sent_s)
            if outcome is not None:
                span.note_finished(outcome)
                self._outcomes[number] = outcome
                self.unloaded = call if is_not_loaded(outcome) else self.unloaded

    def _prioritize(self, call: GenerateCall) -> GenerateCall:
        if not self._priority:
            return call
        return replace(call, options=call.options.model_copy(update={"priority": self._priority}))

    async def _generate(
        self, number: int, call: GenerateCall, span: CallSpan, sent_s: float
    ) -> Outcome | None:
        """Generate a sequence that has its turn.

        Args:
            sent_s: When its turn began.

        Returns:
            Its outcome; None in a stream, which has been sent its chunks.
        """
        try:
            return await self._runner.generate(self._prioritize(call), self._times)
        except ServingError as error:
            return error


class StreamRun(PlanRun):
    """The calls of a plan for a stream: their chunks are sent as they arrive.

    Args:
        runner: Runs its calls.
        admission: Gives their turns.
        stream: Takes the chunks.
        plan_again: Plans what has not begun when the version is replaced: other chunks are sent.
    """

    def __init__(
        self,
        plan: Plan,
        runner: CallRunner,
        admission: Admission,
        times: RequestTimes,
        stream: ChunkStream,
        plan_again: PlanAgain,
    ) -> None:
        super().__init__(plan, runner, admission, times)
        self._turn = admission.stream_turn
        self._priority += STREAM_PRIORITY
        self._plan_again = plan_again
        self._plans: dict[int, asyncio.Future[Plan | None]] = {}
        """Version that was replaced → the plan for another."""
        self._streaming = plan.streaming()
        self._stream = stream
        self._refusal: ServingError | None = None

    async def run(self) -> None:
        """Run all calls; end them when one is to be planned again and nothing has been sent."""
        try:
            await super().run()
        except* _PlanAgain:
            if self._stream.has_sent:  # by another call, before it was ended
                self.unloaded = None
        finally:
            for planning in self._plans.values():
                planning.cancel()

    def following(self) -> None:
        """None: no task that streams has further calls."""

    async def finish(self, in_pool: InPool) -> None:
        """None: all chunks have been sent.

        Raises:
            ServingError: what the request was refused with, or no item succeeded.
        """
        if failure := self._refusal or self._streaming.failure:
            raise failure

    async def _generate(
        self, number: int, call: GenerateCall, span: CallSpan, sent_s: float
    ) -> None:
        switches = 0
        while self._streaming.needs(number):
            call = self._streaming.calls[number]
            try:
                chunks = await self._chunks(number, call, span, sent_s)
            except ServingError as error:
                if is_not_loaded(error) and not self._stream.has_sent:
                    self.unloaded, self._refusal = call, error
                    raise _PlanAgain from error
                switches += 1
                if switches <= MAX_SWITCHES and await self._is_replaced(number, call, error):
                    continue
                chunks = self._streaming.fail(number, error)
            if chunks is not None:
                await self._send(chunks, span, sent_s)
                return

    async def _chunks(
        self, number: int, call: GenerateCall, span: CallSpan, sent_s: float
    ) -> list[Chunk] | None:
        """The last chunks of a call; None if another call has taken its place meanwhile.

        Raises:
            ServingError: the call failed.
        """
        streaming = self._streaming
        if streaming.is_whole(number):
            outcome = await super()._generate(number, call, span, sent_s)
            if streaming.calls[number] is not call:
                return None
            if isinstance(outcome, ServingError):
                raise outcome
            assert outcome is not None
            return streaming.settle(number, outcome)

        async def take(tokens: TokenChunk) -> bool:
            await self._send(streaming.add(number, tokens), span, sent_s)
            return streaming.needs(number)

        sent = self._prioritize(call)
        return streaming.end(number, await self._runner.stream(sent, self._times, take))

    async def _send(self, chunks: list[Chunk], span: CallSpan, sent_s: float) -> None:
        if chunks:
            span.chunk()
            self._stream.timings = self._stream.timings or self._times.until_now([sent_s])
        await self._stream.send(chunks)

    async def _is_replaced(self, number: int, call: GenerateCall, error: ServingError) -> bool:
        """Whether a call that failed has another in its place, of the version that is served now.

        A sequence that has begun has none: the rest of another model would make an answer that is
        neither's (D105).
        """
        if not is_not_loaded(error):
            return False
        if (planning := self._plans.get(call.version)) is None:
            planning = self._plans[call.version] = asyncio.ensure_future(self._plan_again(call))
        try:
            plan = await asyncio.shield(planning)
        except ServingError:
            return False
        if self._streaming.calls[number] is not call:  # by another call of its segment
            return True
        return plan is not None and self._streaming.adopt(number, plan.streaming())


class _PlanAgain(Exception):
    """Ends the calls of a stream of which nothing has been sent."""


def is_not_loaded(outcome: object) -> bool:
    """Whether a call failed because Triton does not have its version."""
    return isinstance(outcome, Unavailable) and outcome.is_not_loaded


class CallRunner:
    """Runs calls, and sends those of requests again (`RetryPolicy`). Lives on one event loop.

    Args:
        pool: The servers; closed by `close`.
        settings: Limits of batches, and the time for which calls wait for their model.
        metrics: Batches, and calls that are sent again, are counted there.
        counts: What is admitted now: while other processes have requests, no call is alone.
    """

    def __init__(
        self, pool: TritonPool, settings: GatewaySettings, metrics: Metrics, counts: Counts
    ) -> None:
        self.pool = pool
        self._metrics = metrics
        self._counts = counts
        longest_s = settings.recovery_timeout
        self._wait_s = math.inf if longest_s is None else longest_s
        self._quarantine = Quarantine()
        self._by_model: defaultdict[str, ModelCalls] = defaultdict(ModelCalls)
        self._batcher = DynamicBatcher(
            self._infer,
            metrics,
            max_calls=settings.max_calls_per_model,
            max_tokens=settings.max_batch_tokens,
            infer_batch=partial(self._infer, is_batch=True) if self._wait_s else None,
            replicas=pool.replicas,
        )

    @property
    def waiting(self) -> int:
        """Stateless calls that wait to be sent."""
        return self._batcher.waiting

    async def infer(
        self, call: InferCall, timeout_s: float, priority: int = 0
    ) -> tuple[Outcome, float]:
        """The outcome of a call that may be batched with others, and the time it was sent."""
        try:
            self._quarantine.check(call)
        except ServingError as error:
            return error, time.monotonic()
        return await self._batcher.outcome(call, timeout_s, priority)

    async def generate(self, call: GenerateCall, times: RequestTimes) -> Finished:
        """The result of a sequence, which a stop string may end; a lost one begins anew.

        Raises:
            ServingError: the call failed.
        """
        latency = times.latency.sequence()

        async def read_whole(share: Share, left_s: float) -> Finished:
            if call.read is None:
                return await share.endpoint.server.generate(call, left_s)
            text = call.read()

            async def take(tokens: TokenChunk) -> bool:
                text.add(tokens)
                return not text.is_stopped

            found = await self._read(share, call, left_s, latency, take)
            return found or ended_early(call, text)

        return await self.run(call, times.left_s, read_whole)

    async def stream(self, call: GenerateCall, times: RequestTimes, take: Take) -> Finished | None:
        """Read a sequence while it is generated; the call is ended when no more is needed.

        A lost sequence goes on behind the tokens that were taken (D102).

        Returns:
            The whole result, of a lost sequence without those tokens; None for a call that was
            ended.

        Raises:
            ServingError: the call failed.
        """
        latency = times.latency.sequence()
        options = call.options
        if options.seed is None:  # of a sample: it is the same one when it goes on
            options = options.model_copy(update={"seed": secrets.randbits(63)})
        taken: list[int] = []

        async def read_on(share: Share, left_s: float) -> Finished | None:
            if taken:
                self._metrics.kept_tokens.labels(call.model).inc(len(taken))
            share.keeps_tokens = True
            behind = _behind(call, options, taken)
            return await self._read(share, behind, left_s, latency, note)

        async def note(tokens: TokenChunk) -> bool:
            taken.extend(tokens.token_ids)
            return await take(tokens)

        return await self.run(call, times.left_s, read_on)

    async def close(self) -> None:
        """End all calls and close the connections."""
        await self._batcher.close()
        await self.pool.close()

    async def run(
        self, call: Call, timeout_s: float, work: Work[T], *, is_batch: bool = False
    ) -> T:
        """The result of a call, which is sent as often as its `RetryPolicy` has it.

        Args:
            timeout_s: Of all attempts.
            work: Runs the call on a server.
            is_batch: Whether the call is several, which their caller sends again apart once their
                model is up.

        Raises:
            Quarantined: the process of the model ended because of this call.
            ServingError: the call failed, or the model was not up again in time.
        """
        self._quarantine.check(call)
        policy = RetryPolicy(timeout_s, self._wait_s)
        failure: Unavailable | None = None
        if self.pool.is_awaited(call):  # known not to be up: nothing is sent
            failure = Unavailable(f"{call.model} is not up: try again", retry_after_s=1)
        calls = self._by_model[call.model]
        while True:
            await_up = partial(self._await_up, call, failure, policy)
            async with calls.turn(await_up, is_alone=policy.is_suspect) as sent:
                try:
                    return await self.pool.send(call, policy, work)
                except Unavailable as error:
                    failure = error
            others = self.pool.has_others(call, policy.tried)
            was_alone = not (sent.is_shared or self._counts.requests_elsewhere())
            act = policy.act(failure, has_others=others, was_alone=was_alone)
            if act is Act.OTHER_SERVER:
                failure = None
                continue
            if act is Act.RAISE:
                raise failure
            if act is Act.QUARANTINE:
                self._metrics.quarantined_calls.labels(call.model).inc()
                log.error(
                    "a request ended the process of its model %d times and is refused for a while",
                    policy.losses,
                    extra={"model": call.model},
                )
                raise self._quarantine.add(call) from failure
            if is_batch:
                await self._await_up(call, failure, policy)
                raise failure
            self._metrics.resent_calls.labels(call.model).inc()

    async def _await_up(self, call: Call, failure: Unavailable | None, policy: RetryPolicy) -> None:
        """Wait until the version of a call that failed is up again.

        Raises:
            Unavailable: the failure, if it is not in time; `is_not_loaded`, if another version is
                served.
        """
        if failure is None:
            return
        try:
            async with asyncio.timeout(min(policy.left_s, self._wait_s)):
                served = await self.pool.await_version(call)
        except TimeoutError:
            raise failure from None
        if served != call.version:
            failure.is_not_loaded = True
            raise failure

    async def _read(
        self,
        share: Share,
        call: GenerateCall,
        timeout_s: float,
        latency: SequenceLatency,
        take: Take,
    ) -> Finished | None:
        """The whole result of a sequence whose tokens are taken; None if no more were needed.

        Raises:
            Unavailable: the call failed; `is_moved`, if it goes on at another server.
        """
        async with aclosing(share.endpoint.server.stream(call, timeout_s)) as stream:
            async for tokens in stream:
                if isinstance(tokens, Finished):
                    return tokens
                share.take(len(tokens.token_ids))
                latency.observe(len(tokens.token_ids))
                if not await take(tokens):
                    return None
                self.pool.move(share.endpoint, call)
        raise InternalError(f"{call.model} ended without a response")

    async def _infer(self, call: InferCall, timeout_s: float, *, is_batch: bool = False) -> Outputs:
        async def infer(share: Share, left_s: float) -> Outputs:
            return await share.endpoint.server.infer(call, left_s)

        return await self.run(call, timeout_s, infer, is_batch=is_batch)


def _behind(call: GenerateCall, options: Overrides, taken: Sequence[int]) -> GenerateCall:
    """The call that goes on behind tokens."""
    generated = {"generated_ids": tuple(taken)} if taken else {}
    return replace(call, options=options.model_copy(update=generated))
