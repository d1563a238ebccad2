"""The tasks behind both protocols: validated request in, response out.

prepare (thread pool) → admitted by tokens → calls, each in its turn → finish (thread pool).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

from serving.errors import DeadlineExceeded, TriptychError, Unavailable
from serving.gateway.admission import Admission
from serving.gateway.catalog import Catalog
from serving.gateway.inference import Inference
from serving.gateway.metrics import Metrics
from serving.settings import GatewaySettings
from serving.tasks import caption, translate, zero_shot
from serving.tasks.call import Call, GenerateCall, Outcome, Result
from serving.tasks.embeddings import EmbeddingCache
from serving.tasks.picture import Picture
from triptych.messages import (
    CaptionRequest,
    CaptionResponse,
    ModelList,
    TranslateRequest,
    TranslateResponse,
    ZeroShotRequest,
    ZeroShotResponse,
)

T = TypeVar("T")
Response_co = TypeVar("Response_co", covariant=True)


class Plan(Protocol[Response_co]):
    """What every task prepares."""

    @property
    def calls(self) -> Sequence[Call]:
        """What to ask of models."""
        ...

    def finish(self, outcomes: Sequence[Outcome]) -> Response_co:
        """The response, given one outcome for each call."""
        ...


@dataclass(frozen=True)
class Timings:
    """Where a request's time went, so that a slow one names its own cause."""

    tokenization_s: float
    queue_s: float
    """The longest wait of one of its calls."""
    inference_s: float
    """From the first call's turn to the last outcome."""


@dataclass(frozen=True)
class Answer(Generic[T]):
    """A response and its timings."""

    response: T
    timings: Timings


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
        model = self.catalog.resolve("translate", request.model, request.source, request.target)
        prepare = partial(translate.prepare, request, model, self._limits)
        return await self._answer("translate", prepare)

    async def caption(
        self, request: CaptionRequest, pictures: Sequence[Picture]
    ) -> Answer[CaptionResponse]:
        """Pictures in words; `pictures` stand for the request's own."""
        model = self.catalog.resolve("caption", request.model)
        prepare = partial(caption.prepare, request, pictures, model, self._limits)
        return await self._answer("caption", prepare)

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

    async def in_pool(self, work: Callable[..., T], *arguments: object) -> T:
        """Run work that would hold the event loop up."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, work, *arguments)

    async def perform(self, call: Call, timeout_s: float) -> Result:
        """One call, without admission (canaries).

        Raises:
            TriptychError: what became of it.
        """
        result: Result
        if isinstance(call, GenerateCall):
            result = await self.inference.generate(call, timeout_s)
        else:
            result = await self.inference.infer(call, timeout_s)
        self.last_answer_s[call.model] = time.monotonic()
        return result

    async def close(self) -> None:
        """Give threads and connection back."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        await self.inference.close()

    async def _answer(self, task: str, prepare: Callable[[], Plan[T]]) -> Answer[T]:
        if self.is_draining:
            raise Unavailable("the gateway is shutting down: try another", retry_after_s=1)
        with self._admission.request():
            return await self._within_deadline(self._run(task, prepare))

    async def _run(self, task: str, prepare: Callable[[], Plan[T]]) -> Answer[T]:
        deadline_s = time.monotonic() + self.settings.request_timeout
        started_s = time.monotonic()
        plan = await self.in_pool(prepare)
        tokenized_s = time.monotonic()
        with self._admission.reserved(sum(call.tokens for call in plan.calls)):
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._turn(c, deadline_s)) for c in plan.calls]
        turns = [task.result() for task in tasks]
        done_s = time.monotonic()
        response = await self.in_pool(plan.finish, [outcome for outcome, _ in turns])
        timings = Timings(
            tokenization_s=tokenized_s - started_s,
            queue_s=max(turn_s - tokenized_s for _, turn_s in turns),
            inference_s=done_s - min(turn_s for _, turn_s in turns),
        )
        self._observe(task, timings)
        return Answer(response, timings)

    async def _turn(self, call: Call, deadline_s: float) -> tuple[Outcome, float]:
        """A call's outcome, and when its turn came."""
        async with self._admission.turn():
            turn_s = time.monotonic()
            try:
                return await self.perform(call, max(0.001, deadline_s - turn_s)), turn_s
            except TriptychError as error:
                return error, turn_s

    async def _within_deadline(self, work: Awaitable[T]) -> T:
        limit_s = self.settings.request_timeout
        try:
            async with asyncio.timeout(limit_s):
                return await work
        except TimeoutError:
            raise DeadlineExceeded(f"no answer within {limit_s:g} s: ask for less") from None

    def _observe(self, task: str, timings: Timings) -> None:
        route = f"/v1/{task}"
        self.metrics.tokenization.labels(route).observe(timings.tokenization_s)
        self.metrics.queue.labels(route).observe(timings.queue_s)
        self.metrics.inference.labels(route).observe(timings.inference_s)
