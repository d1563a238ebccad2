"""The tasks behind both protocols: validated request in, response out.

prepare (thread pool) → admitted by tokens → calls, each in its turn → finish (thread pool).
A stream goes the same way; its pieces are told while the calls run.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TypeVar

from serving.errors import DeadlineExceeded, InternalError, TriptychError, Unavailable
from serving.gateway.admission import Admission
from serving.gateway.catalog import Catalog
from serving.gateway.inference import Inference
from serving.gateway.metrics import Metrics
from serving.gateway.pace import Beat, Pace
from serving.gateway.plans import Answer, Plan, StreamPlan, Timings
from serving.gateway.streams import PieceStream
from serving.settings import GatewaySettings
from serving.tasks import caption, generate, translate, zero_shot
from serving.tasks.call import (
    Call,
    GenerateCall,
    Generated,
    InferCall,
    Outcome,
    Result,
    ended_early,
)
from serving.tasks.call import size as size_of
from serving.tasks.caption import CaptionPlan
from serving.tasks.embeddings import EmbeddingCache
from serving.tasks.generate import GeneratePlan
from serving.tasks.picture import Picture
from serving.tasks.stream import Streaming
from serving.tasks.tokens import LiveText
from serving.tasks.translate import TranslatePlan
from triptych.messages import Chunk, ModelList
from triptych.tasks.caption import CaptionRequest, CaptionResponse
from triptych.tasks.generate import GenerateRequest, GenerateResponse
from triptych.tasks.translate import TranslateRequest, TranslateResponse
from triptych.tasks.zero_shot import ZeroShotRequest, ZeroShotResponse

T = TypeVar("T")

LIGHT = 4096
"""Characters, bytes or numbers: so few are worked on at once, for handing them to a thread and back
takes longer, most of all while the engine has the cores."""
STREAM_PRIORITY = 10
"""Somebody is reading a stream while it is made: it goes before whole answers, of priority 0."""


class Service:
    """Lives on one event loop; tasks' own work runs in its thread pool.

    Args:
        catalog: The models.
        inference: Whoever runs them; closed by `close`.
        settings: Limits.
        metrics: Where timings are counted.
    """

    def __init__(
        self, catalog: Catalog, inference: Inference, settings: GatewaySettings, metrics: Metrics
    ) -> None:
        self.catalog = catalog
        self.inference = inference
        self.settings = settings
        self.metrics = metrics
        self.is_draining = False
        self.last_answer_s: dict[str, float] = {}
        """Model (of Triton) → monotonic time of its last result: a busy model needs no canary."""
        self._limits = settings.task_limits
        self._embeddings = EmbeddingCache()
        self._pool = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="tasks")
        self._admission = Admission(
            max_requests=settings.max_concurrent_requests,
            max_tokens=settings.max_concurrent_tokens,
            max_sequences=settings.max_concurrent_sequences,
        )
        metrics.queue_size.set_function(lambda: self._admission.waiting)
        metrics.tokens.set_function(lambda: self._admission.tokens)

    async def translate(self, request: TranslateRequest) -> Answer[TranslateResponse]:
        """Texts in another language."""
        size = _characters(*request.texts)
        return await self._answer("translate", self._translation(request), size)

    def translate_stream(self, request: TranslateRequest) -> PieceStream:
        """The same, piece by piece."""
        asked = request.model_copy(update={"stream": True})
        return self._stream("translate", self._translation(asked))

    async def caption(
        self, request: CaptionRequest, pictures: Sequence[Picture]
    ) -> Answer[CaptionResponse]:
        """Pictures in words; `pictures` stand for the request's own."""
        return await self._answer("caption", self._caption(request, pictures))

    def caption_stream(self, request: CaptionRequest, pictures: Sequence[Picture]) -> PieceStream:
        """The same, piece by piece."""
        asked = request.model_copy(update={"stream": True})
        return self._stream("caption", self._caption(asked, pictures))

    async def generate(self, request: GenerateRequest) -> Answer[GenerateResponse]:
        """Prompts continued."""
        examples = [text for one in request.examples or () for text in (one.input, one.output)]
        size = _characters(*request.prompts, *examples, request.instruction)
        return await self._answer("generate", self._generation(request), size)

    def generate_stream(self, request: GenerateRequest) -> PieceStream:
        """The same, piece by piece."""
        asked = request.model_copy(update={"stream": True})
        return self._stream("generate", self._generation(asked))

    async def zero_shot(
        self, request: ZeroShotRequest, pictures: Sequence[Picture]
    ) -> Answer[ZeroShotResponse]:
        """Pictures among labels; `pictures` stand for the request's own."""
        model = self.catalog.resolve("zero-shot", request.model)
        prepare = partial(
            zero_shot.prepare, request, pictures, model, self._limits, self._embeddings
        )
        return await self._answer("zero-shot", prepare)

    def models(self) -> ModelList:
        """What is served."""
        return self.catalog.listing(self.settings)

    async def in_pool(self, size: int | None, work: Callable[..., T], *arguments: object) -> T:
        """Run work that would hold the event loop up; what is light is done at once.

        Args:
            size: About how much there is to do (`LIGHT`); None, much.
        """
        if size is not None and size <= LIGHT:
            return work(*arguments)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, work, *arguments)

    async def perform(self, call: Call, timeout_s: float, pace: Pace | None = None) -> Result:
        """One call, without admission (canaries).

        Args:
            pace: Where a call that may end early counts its tokens' times.

        Raises:
            TriptychError: what became of it.
        """
        result: Result
        if isinstance(call, InferCall):
            result = await self.inference.infer(call, timeout_s)
        elif call.read is None:
            result = await self.inference.generate(call, timeout_s)
        else:
            result = await self._read(call, call.read(), timeout_s, pace)
        self.last_answer_s[call.model] = time.monotonic()
        return result

    def check(self) -> None:
        """Refuses work that would be refused anyway, before its body is read.

        Raises:
            Overloaded: the house is full.
            Unavailable: it is closing.
        """
        self._refuse_if_draining()
        self._admission.check()

    async def emptied(self, timeout_s: float) -> bool:
        """Waits until no request is in the house; whether that came to pass in time."""
        return await self._admission.emptied(timeout_s)

    def send_away(self) -> None:
        """Ends every request in the house with an error."""
        self._admission.send_away()

    async def close(self) -> None:
        """Give threads and connection back."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        await self.inference.close()

    def _translation(self, request: TranslateRequest) -> Callable[[], TranslatePlan]:
        model = self.catalog.resolve("translate", request.model, request.source, request.target)
        return partial(translate.prepare, request, model, self._limits)

    def _caption(
        self, request: CaptionRequest, pictures: Sequence[Picture]
    ) -> Callable[[], CaptionPlan]:
        model = self.catalog.resolve("caption", request.model)
        return partial(caption.prepare, request, pictures, model, self._limits)

    def _generation(self, request: GenerateRequest) -> Callable[[], GeneratePlan]:
        model = self.catalog.resolve("generate", request.model)
        return partial(generate.prepare, request, model, self._limits)

    async def _answer(
        self, task: str, prepare: Callable[[], Plan[T]], size: int | None = None
    ) -> Answer[T]:
        self._refuse_if_draining()
        with self._admission.request():
            return await self._within_deadline(self._run(task, prepare, size))

    async def _run(self, task: str, prepare: Callable[[], Plan[T]], size: int | None) -> Answer[T]:
        deadline_s = time.monotonic() + self.settings.request_timeout
        started_s = time.monotonic()
        pace = Pace(self.metrics, _route(task), started_s)
        plan = await self.in_pool(size, prepare)
        tokenized_s = time.monotonic()
        with self._admission.reserved(sum(call.tokens for call in plan.calls)):
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._turn(c, deadline_s, pace)) for c in plan.calls]
        turns = [task.result() for task in tasks]
        done_s = time.monotonic()
        outcomes = [outcome for outcome, _ in turns]
        response = await self.in_pool(sum(map(size_of, outcomes)), plan.finish, outcomes)
        timings = Timings(
            tokenization_s=tokenized_s - started_s,
            queue_s=max(turn_s - tokenized_s for _, turn_s in turns),
            inference_s=done_s - min(turn_s for _, turn_s in turns),
        )
        self._observe(task, timings)
        return Answer(response, timings)

    async def _turn(self, call: Call, deadline_s: float, pace: Pace) -> tuple[Outcome, float]:
        """A call's outcome, and when its turn came."""
        async with self._admission.turn():
            turn_s = time.monotonic()
            try:
                return await self.perform(call, max(0.001, deadline_s - turn_s), pace), turn_s
            except TriptychError as error:
                return error, turn_s

    async def _read(
        self, call: GenerateCall, live: LiveText, timeout_s: float, pace: Pace | None
    ) -> Generated:
        """A call's answer, ended as soon as a stop string is found in its text."""
        beat = pace.beat() if pace else None
        async with aclosing(self.inference.stream(call, timeout_s)) as stream:
            async for told in stream:
                if isinstance(told, Generated):
                    return told
                if beat:
                    beat.tokens(len(told.ids))
                live.add(told)
                if live.is_stopped:
                    return ended_early(call, live)
        raise InternalError(f"{call.model} ended without an answer")

    def _stream(self, task: str, prepare: Callable[[], StreamPlan]) -> PieceStream:
        """Pieces of a request that is not admitted yet: the first wait tells whether it is."""
        self._refuse_if_draining()

        async def produce(stream: PieceStream) -> None:
            with self._admission.request():
                await self._within_deadline(self._run_stream(task, prepare, stream))

        return PieceStream(produce)

    async def _run_stream(
        self, task: str, prepare: Callable[[], StreamPlan], stream: PieceStream
    ) -> None:
        """The pieces of a request, told as they come.

        Raises:
            TriptychError: no item has an answer, or the request as a whole failed.
        """
        started_s = time.monotonic()
        pace = Pace(self.metrics, _route(task), started_s)
        plan = await self.in_pool(None, prepare)
        tokenized_s = time.monotonic()
        streaming = plan.streaming()

        async def turn(number: int) -> float:
            async with self._admission.turn():
                turn_s = time.monotonic()
                timeout_s = started_s + self.settings.request_timeout - turn_s
                pieces = self._pieces(number, plan.calls[number], streaming, timeout_s, pace.beat())
                async with aclosing(pieces):
                    async for ready in pieces:
                        if ready and stream.timings is None:
                            stream.timings = timings(turn_s, turn_s)
                        stream.tell(ready)
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
        self._observe(task, timings(min(turns), max(turns)))

    async def _pieces(
        self, number: int, call: GenerateCall, streaming: Streaming, timeout_s: float, beat: Beat
    ) -> AsyncGenerator[list[Chunk], None]:
        """What one call adds to a stream; it is ended as soon as nothing more of it is wanted."""
        if not streaming.wants(number):
            return
        options = call.options.model_copy(update={"priority": STREAM_PRIORITY})
        call = replace(call, options=options)
        try:
            async with aclosing(self.inference.stream(call, max(0.001, timeout_s))) as stream:
                async for told in stream:
                    if isinstance(told, Generated):
                        self.last_answer_s[call.model] = time.monotonic()
                        yield streaming.end(number, told)
                        return
                    beat.tokens(len(told.ids))
                    yield streaming.add(number, told)
                    if not streaming.wants(number):
                        yield streaming.end(number)
                        return
        except TriptychError as error:
            yield streaming.fail(number, error)

    async def _within_deadline(self, work: Awaitable[T]) -> T:
        limit_s = self.settings.request_timeout
        try:
            async with asyncio.timeout(limit_s):
                return await work
        except TimeoutError:
            raise DeadlineExceeded(f"no answer within {limit_s:g} s: ask for less") from None

    def _refuse_if_draining(self) -> None:
        if self.is_draining:
            raise Unavailable("the gateway is shutting down: try another", retry_after_s=1)

    def _observe(self, task: str, timings: Timings) -> None:
        route = _route(task)
        self.metrics.tokenization.labels(route).observe(timings.tokenization_s)
        self.metrics.queue.labels(route).observe(timings.queue_s)
        self.metrics.inference.labels(route).observe(timings.inference_s)


def _characters(*texts: str | None) -> int:
    return sum(len(text) for text in texts if text)


def _route(task: str) -> str:
    return f"/v1/{task}"
