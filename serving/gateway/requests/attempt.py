"""One attempt at a request: the calls of one plan, for a whole response or for a stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, TypeAlias

from inference.errors import (
    ServingError,
    Unavailable,
)
from inference.sequences import TokenChunk
from inference.tasks.shared.model_calls import Call, GenerateCall, InferCall, Outcome
from inference.tasks.shared.served_task import Plan
from serving.gateway.admission.admission import Admission
from serving.gateway.observability.request_record import RequestTimes
from serving.gateway.observability.trace_context import TRACE, CallSpan, call_span
from serving.gateway.requests.call_runner import CallRunner
from serving.gateway.requests.chunk_stream import ChunkStream
from triptych.messages import Chunk, Response

InPool: TypeAlias = Callable[..., Awaitable[Response[Any]]]
PlanAgain: TypeAlias = Callable[[Call], Awaitable[Plan | None]]
"""Plans a request for the version that has replaced that of a call; None: there is none."""
MAX_SWITCHES = 3
"""Of its version, that one call of a stream survives."""
STREAM_PRIORITY = 10
"""Priority of streams in the engine; of other requests 0."""


class Attempt:
    """The calls of a plan for a whole response: one that fails leaves the others alone.

    Args:
        runner: Runs its calls.
        admission: Gives their turns.

    Attributes:
        sent_s: When the calls were sent.
        refused: A call whose version Triton does not have: the request may be planned again.
    """

    def __init__(
        self, plan: Plan, runner: CallRunner, admission: Admission, times: RequestTimes
    ) -> None:
        self.plan = plan
        self.sent_s: list[float] = []
        self.refused: Call | None = None
        self._runner = runner
        self._admission = admission
        self._times = times
        self._outcomes: dict[int, Outcome] = {}

    async def run(self) -> None:
        """Run all calls; their tokens are reserved until the last one has ended."""
        calls = self.plan.calls
        with self._admission.reserved(sum(call.tokens for call in calls)):
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
        return None if self.refused else self.plan.following(self._in_order())

    def _in_order(self) -> list[Outcome]:
        return [self._outcomes[number] for number in range(len(self.plan.calls))]

    async def finish(self, in_pool: InPool) -> Response[Any] | None:
        """The response, once the calls have ended; None for a stream.

        Args:
            in_pool: Runs work of a size, off the event loop where it is large.

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
        """Run one call in its turn."""
        with call_span(call) as span:
            outcome: Outcome | None
            if isinstance(call, InferCall):
                outcome, sent_s = await self._runner.joined(call, self._times.left_s)
                span.sent(sent_s)
            else:
                async with self._turn():
                    sent_s = time.monotonic()
                    span.sent(sent_s)
                    outcome = await self._generate(number, call, span, sent_s)
            self.sent_s.append(sent_s)
            if outcome is not None:
                span.finished(outcome)
                self._outcomes[number] = outcome
                self.refused = call if is_not_loaded(outcome) else self.refused

    def _turn(self) -> AbstractAsyncContextManager[None]:
        return self._admission.turn()

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
            return await self._runner.whole(call, self._times)
        except ServingError as error:
            return error


class StreamAttempt(Attempt):
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
        self._plan_again = plan_again
        self._plans: dict[int, asyncio.Future[Plan | None]] = {}
        """Version that was replaced → the plan for another."""
        self._streaming = plan.streaming()
        self._stream = stream
        self._refusal: ServingError | None = None

    async def run(self) -> None:
        """Run all calls; when one is refused before anything was sent, the others are ended."""
        try:
            await super().run()
        except* _Refused:
            if self._stream.has_sent:  # by another call, before it was ended
                self.refused = None
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

    def _turn(self) -> AbstractAsyncContextManager[None]:
        return self._admission.stream_turn()

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
                    self.refused, self._refusal = call, error
                    raise _Refused from error
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
        options = call.options.model_copy(update={"priority": STREAM_PRIORITY})
        sent = replace(call, options=options)
        if streaming.is_whole(number):
            outcome = await super()._generate(number, sent, span, sent_s)
            if streaming.calls[number] is not call:
                return None
            if isinstance(outcome, ServingError):
                raise outcome
            assert outcome is not None
            return streaming.settle(number, outcome)

        async def take(tokens: TokenChunk) -> bool:
            await self._send(streaming.add(number, tokens), span, sent_s)
            return streaming.needs(number)

        return streaming.end(number, await self._runner.read(sent, self._times, take))

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


class _Refused(Exception):
    """Ends the calls of a stream of which nothing has been sent."""


def is_not_loaded(outcome: object) -> bool:
    """Whether a call failed because Triton does not have its version."""
    return isinstance(outcome, Unavailable) and outcome.is_not_loaded
