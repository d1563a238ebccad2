"""Execution of requests: admission, deadlines, at most two attempts, and work off the event loop.

plan (thread pool) → admitted by tokens → calls, each in its turn → finish (thread pool).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

from inference.errors import DeadlineExceeded, InvalidRequest, Unavailable
from inference.tasks.shared.model_calls import Call
from inference.tasks.shared.served_task import Plan
from serving.draining import SHUTTING_DOWN
from serving.gateway.admission.admission import Admission
from serving.gateway.admission.auth import key_name
from serving.gateway.admission.counts import Counts, LocalCounts
from serving.gateway.admission.task_threads import TaskThreads
from serving.gateway.observability.metrics import Metrics, Timings
from serving.gateway.observability.request_record import RequestTimes
from serving.gateway.requests.attempt import Attempt, StreamAttempt
from serving.gateway.requests.call_runner import CallRunner
from serving.gateway.requests.chunk_stream import ChunkStream
from serving.gateway.triton_client.pool import TritonPool
from serving.process_pool.pool import ProcessPool
from serving.process_pool.process import WorkLimits
from serving.settings.gateway_settings import GatewaySettings
from triptych.messages import Response

T = TypeVar("T")

TIMEOUT_HEADER = "x-request-timeout"
TIMEOUT_S: ContextVar[float] = ContextVar("timeout_s", default=math.inf)
"""Seconds that the client of the current request gives it, by that header or the deadline of a gRPC
call; the gateway's own limit holds too."""
INLINE_LIMIT = 4096
"""Characters, bytes or numbers: up to this size work is done on the event loop. Handing it to a
thread and back takes longer, especially while the engine occupies the cores."""
PROCESSOR_S = 15
"""Processor time of one image or document; usual ones take less than one second."""
ReservePixels: TypeAlias = Callable[[int], Awaitable[None]]
"""Reserves that many pixels in all for a request; raises as `Admission.pixels` and `agree` say."""


@dataclass(frozen=True)
class Preparation:
    """How a request's plan is made.

    Attributes:
        route: Label of the metrics.
        plan: Makes the plan; reserves its pixels first.
        plan_again: Given a call whose version Triton does not have: makes the plan for the version
            that is served by now; None if there is no other. Awaited once at most.
    """

    route: str
    plan: Callable[[ReservePixels], Awaitable[Plan]]
    plan_again: Callable[[ReservePixels, Call], Awaitable[Plan | None]]


class Execution:
    """Runs plans. Lives on one event loop; plans are made and finished in its thread pool.

    Args:
        pool: The servers; closed by `close`.
        settings: Limits.
        metrics: Timings are recorded there.
        counts: What is admitted now, if other processes admit requests too.

    Attributes:
        admission: What runs now.
        calls: Runs single calls.
        processes: Those of `in_process`.
    """

    def __init__(
        self,
        pool: TritonPool,
        settings: GatewaySettings,
        metrics: Metrics,
        counts: Counts | None = None,
    ) -> None:
        self.is_draining = False
        self._metrics = metrics
        self._timeout_s = settings.request_timeout
        self._threads = TaskThreads()
        self.processes = ProcessPool(
            settings.own_processes, WorkLimits(settings.work_memory, PROCESSOR_S)
        )
        counts = counts or LocalCounts()
        self.admission = Admission(
            max_requests=settings.max_concurrent_requests,
            max_tokens=settings.max_concurrent_tokens,
            max_pixels=settings.max_concurrent_pixels,
            max_bytes=settings.max_concurrent_bytes,
            max_sequences=settings.max_concurrent_sequences,
            counts=counts,
        )
        self.calls = CallRunner(pool, settings, metrics, counts)
        metrics.read_load = lambda: counts.load(self.waiting)

    @property
    def waiting(self) -> int:
        """Calls of this process that wait to be sent to Triton."""
        return self.admission.waiting + self.calls.waiting

    async def in_pool(self, size: int | None, work: Callable[..., T], *arguments: object) -> T:
        """Run work off the event loop, unless it is small.

        Args:
            size: Size of the work (`INLINE_LIMIT`, `task_threads.LARGE`); None: between both.
        """
        if size is not None and size <= INLINE_LIMIT:
            return work(*arguments)
        return await self._threads.run(size, work, *arguments)

    async def in_process(self, expected_s: float, work: Callable[..., T], *arguments: object) -> T:
        """Run work that cannot be cancelled in a process, which is killed at the deadline.

        Args:
            expected_s: Seconds that it will take, about.
            work: A function of a module.

        Raises:
            InvalidRequest: it takes more than it may.
        """
        return await self.processes.run(work, *arguments, expected_s=expected_s, key=key_name())

    def check(self) -> None:
        """Refuse a request before its body is read, if it would be refused anyway.

        Raises:
            Overloaded: too many requests.
            Unavailable: the gateway is shutting down.
        """
        self._refuse_if_draining()
        self.admission.check()

    async def answer(self, preparation: Preparation) -> tuple[Response[Any], Timings]:
        """The response of one request, and where its time went.

        Raises:
            ServingError: refused, out of time, or no item succeeded.
        """
        self._refuse_if_draining()
        async with self._admitted() as reserve:
            response, timings = await self._run(preparation, reserve)
        assert response is not None
        return response, timings

    def stream(self, preparation: Preparation) -> ChunkStream:
        """The chunks of one request; it is admitted when the stream is first awaited.

        Raises:
            Unavailable: the gateway is shutting down.
        """
        self._refuse_if_draining()

        async def produce(stream: ChunkStream) -> None:
            async with self._admitted() as reserve:
                await stream.finish(self._run(preparation, reserve, stream))

        return ChunkStream(produce)

    async def close(self) -> None:
        """Release threads, processes and connections."""
        self.processes.close()
        self._threads.close()
        await self.calls.close()

    @asynccontextmanager
    async def _admitted(self) -> AsyncIterator[ReservePixels]:
        """Admission of a request, and the reservation of its pixels."""
        with self.admission.request(), self.admission.pixels() as reserve:
            await self.admission.agree("requests", "bytes")

            async def reserve_pixels(pixels: int) -> None:
                reserve(pixels)
                await self.admission.agree("pixels")

            yield reserve_pixels

    async def _run(
        self, preparation: Preparation, reserve: ReservePixels, stream: ChunkStream | None = None
    ) -> tuple[Response[Any] | None, Timings]:
        """Plan a request and run its calls, again if Triton does not have their version any more.

        Returns:
            Its response, unless it is a stream, and where its time went.

        Raises:
            ServingError: out of time, refused, or no item succeeded.
        """
        limit_s = min(self._timeout_s, TIMEOUT_S.get())  # the gateway's, or its client's
        times = RequestTimes(self._metrics, preparation.route, limit_s)

        async def attempted(plan: Plan) -> Attempt:
            made = Attempt(plan, self.calls, self.admission, times)
            if stream is not None:
                again = partial(preparation.plan_again, reserve)
                made = StreamAttempt(plan, self.calls, self.admission, times, stream, again)
            await made.run()
            following = made.following()
            return made if following is None else await attempted(following)

        try:
            async with asyncio.timeout(limit_s):
                plan = await preparation.plan(reserve)
                times.planned()
                attempt = await attempted(plan)
                if attempt.refused is not None:
                    replanned = await preparation.plan_again(reserve, attempt.refused)
                    attempt = await attempted(replanned) if replanned else attempt
                timings = times.until_now(attempt.sent_s)
                response = await attempt.finish(self.in_pool)
        except TimeoutError:
            raise DeadlineExceeded(
                f"no response within {limit_s:g} s: send a smaller request"
            ) from None
        self._metrics.observe_timings(preparation.route, timings)
        return response, timings

    def _refuse_if_draining(self) -> None:
        if self.is_draining:
            raise shutting_down()


def shutting_down() -> Unavailable:
    """The error of requests that a gateway which shuts down does not finish."""
    return Unavailable(f"{SHUTTING_DOWN}: try another", retry_after_s=1)


def set_timeout(header: str | None) -> None:
    """Take the client's limit from `x-request-timeout: SECONDS`; without the header there is none.

    Raises:
        InvalidRequest: it is not a positive number.
    """
    TIMEOUT_S.set(math.inf)
    if header is None:
        return
    try:
        seconds = float(header)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InvalidRequest(
            f"the header {TIMEOUT_HEADER} is a positive number of seconds, such as 2.5",
            field=TIMEOUT_HEADER,
        )
    TIMEOUT_S.set(seconds)
