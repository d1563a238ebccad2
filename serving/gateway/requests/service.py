"""A gateway's requests: plan, admission, deadline, at most two plans, and response or stream.

plan (thread pool) → admitted by tokens → calls, each in its turn → finish (thread pool).
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any, TypeAlias, TypeVar

from pydantic import ValidationError

from inference.errors import (
    DeadlineExceeded,
    InvalidRequest,
    MalformedBody,
    ServingError,
    SetupError,
    Unavailable,
    UnknownModel,
)
from inference.processing.prepared_image import read_image
from inference.tasks.shared.image_inputs import ImageInput, measure_images
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.model_calls import Call
from inference.tasks.shared.served_task import AnyTask, Plan
from serving.documents.passages import document_text
from serving.draining import SHUTTING_DOWN
from serving.gateway.admission.admission import Admission, Counts, LocalCounts, Reserve
from serving.gateway.admission.auth import Keys, key_name
from serving.gateway.admission.task_threads import TaskThreads
from serving.gateway.observability.metrics import Metrics, RequestTimes, Timings
from serving.gateway.observability.trace_context import TRACE, Tracer
from serving.gateway.requests.catalog import Catalog
from serving.gateway.requests.chunk_stream import ChunkStream
from serving.gateway.requests.glossaries import Glossaries
from serving.gateway.requests.image_urls import ImageFetcher
from serving.gateway.requests.plan_runner import CallRunner, PlanRun, StreamRun
from serving.gateway.triton_client.pool import TritonPool
from serving.process_pool.pool import ProcessPool
from serving.process_pool.process import WorkLimits
from serving.settings.gateway_settings import GatewaySettings
from triptych.documents import is_document
from triptych.messages import Model, Request, Response

_NAME = re.compile(r"[\w./:-]{1,200}", re.ASCII)
"""What an error repeats of a model's name: no text of a user is in it."""

T = TypeVar("T")
TaskResponse: TypeAlias = Response[Any]

_SWITCH_S = 30.0
"""For the other parts of a bundle to be loaded, and the catalog to follow."""
_SWITCH_POLL_S = 0.1
_S_PER_PIXEL, _S_PER_BYTE = 30e-9, 20e-9
"""About what decoding and resizing take."""
_S_PER_DOCUMENT_BYTE = 1e-6
"""About what reading a document takes."""
EXPORT_S = 2.0
"""For the last spans, when the gateway ends."""
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
MakePlan: TypeAlias = Callable[[ReservePixels, Call | None], Awaitable[Plan | None]]
"""Plans a request for the version that is served now, and reserves its pixels. Given a call of the
plan before, whose version Triton does not have any more: None, if none of its model is loaded."""


@dataclass(frozen=True)
class TaskRequest:
    """A validated request of one task, whatever protocol it arrived by."""

    task: AnyTask
    message: Request
    route: str
    """Label of the metrics."""
    images: Sequence[ImageInput] = ()
    """The images themselves; `message.images` are placeholders."""

    @property
    def streams(self) -> bool:
        """Whether the message requests a stream."""
        return bool(getattr(self.message, "stream", None))


class Service:
    """The tasks of a gateway's models. Lives on one event loop; plans are made in its threads.

    Args:
        pool: The servers; closed by `close`.
        settings: Limits.
        metrics: Timings are recorded there.
        counts: What is admitted now, if other processes admit requests too.

    Attributes:
        is_draining: Whether it refuses new requests.
        admission: What runs now.
        calls: Runs single calls.
        processes: Those of `in_process`.

    Raises:
        SetupError: the file of keys cannot be read, glossaries have no folder, or traces cannot
            be exported.
    """

    def __init__(
        self,
        catalog: Catalog,
        pool: TritonPool,
        settings: GatewaySettings,
        metrics: Metrics,
        counts: Counts | None = None,
    ) -> None:
        self.catalog = catalog
        self.settings = settings
        self.metrics = metrics
        self.keys = Keys(settings.api_key, settings.api_keys)
        self.tracer = _tracer(settings)
        self.glossaries = Glossaries(settings.glossaries)
        self.fetcher = ImageFetcher(settings)
        self.is_draining = False
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

    async def add_stored_terms(self, request: TaskRequest) -> TaskRequest:
        """The request with the terms that it refers to by name; others as they are.

        Raises:
            ServingError: there are none of that name.
        """
        name = request.task.stored_name(request.message)
        if name is None:
            return request
        stored = await self.glossaries.terms(name)
        return replace(request, message=request.task.with_stored(request.message, stored))

    async def answer(self, request: TaskRequest) -> tuple[TaskResponse, Timings]:
        """The response of a request, and where its time went.

        Raises:
            ServingError: no model, refused, out of time, or no item succeeded.
        """
        ends_s = time.monotonic() + min(self._timeout_s, TIMEOUT_S.get())
        legs = [replace(request, message=leg) for leg in request.task.split_legs(request.message)]
        plans = [self._make_plan(leg) for leg in legs]  # refuses a leg before any is answered
        response, timings = await self.answer_plan(request.route, plans[0])
        for leg in legs[1:]:
            TIMEOUT_S.set(max(0.001, ends_s - time.monotonic()))  # one limit for all of them
            message = request.task.continue_leg(leg.message, response)
            plan = self._make_plan(replace(leg, message=message))
            last, more = await self.answer_plan(request.route, plan)
            response, timings = request.task.join_responses(response, last), timings + more
        return response, timings

    def stream(self, request: TaskRequest) -> ChunkStream:
        """The response of a request as chunks.

        Raises:
            ServingError: no model, or the gateway is shutting down.
        """
        return self.stream_plan(request.route, self._make_plan(request))

    async def answer_plan(self, route: str, make_plan: MakePlan) -> tuple[TaskResponse, Timings]:
        """The response of one request, and where its time went.

        Args:
            route: Label of the metrics.

        Raises:
            ServingError: refused, out of time, or no item succeeded.
        """
        self._refuse_if_draining()
        with self.admission.request(), self.admission.pixels() as reserve:
            response, timings = await self._run(route, make_plan, reserve)
        assert response is not None
        return response, timings

    def stream_plan(self, route: str, make_plan: MakePlan) -> ChunkStream:
        """The chunks of one request; it is admitted when the stream is first awaited.

        Raises:
            Unavailable: the gateway is shutting down.
        """
        self._refuse_if_draining()

        async def produce(stream: ChunkStream) -> None:
            with self.admission.request(), self.admission.pixels() as reserve:
                await stream.finish(self._run(route, make_plan, reserve, stream))

        return ChunkStream(produce)

    def model(self, name: str) -> Model:
        """A served model.

        Raises:
            UnknownModel: there is none of that name.
        """
        if name not in self.catalog.names and _NAME.fullmatch(name):
            raise UnknownModel(
                f"the model {name} is not served: GET /v1/models lists those that are"
            )
        return self.catalog.entry(self.catalog.find(name))

    async def is_served_again(self, before: LoadedModel, unloaded: Call) -> bool:
        """Wait for the version that replaced the one which a request was planned for.

        Two versions whose Triton configurations differ cannot overlap: a call that waited in the
        gateway at the moment of the switch finds its version gone. The catalog follows Triton
        within a second, and the parts of a bundle are replaced one after the other.

        Returns:
            False if no version of the called model is loaded: it is being restarted.
        """
        pool, until_s = self.calls.pool, time.monotonic() + _SWITCH_S
        while time.monotonic() < until_s and await pool.served_version(unloaded.model):
            if self.catalog.version(before.name) != before.manifest.version:
                return True
            if await pool.is_ready(unloaded.model, unloaded.version):
                return True
            await asyncio.sleep(_SWITCH_POLL_S)
        return False

    async def close(self) -> None:
        """Release threads, processes and connections."""
        self.processes.close()
        self._threads.close()
        await self.calls.close()
        await self.fetcher.close()
        await asyncio.to_thread(self.tracer.close, EXPORT_S)

    def _make_plan(self, request: TaskRequest) -> MakePlan:
        model = self.catalog.resolve(request.task, request.message)
        if (trace := TRACE.get()) is not None:
            trace.annotate({"triptych.task": request.task.name, "triptych.model": model.name})
        return partial(self._plan, request, model)

    async def _plan(
        self,
        request: TaskRequest,
        model: LoadedModel,
        reserve: ReservePixels,
        unloaded: Call | None,
    ) -> Plan | None:
        """See `MakePlan`; made off the event loop where that is much work."""
        if unloaded is not None:
            if not await self.is_served_again(model, unloaded):
                return None
            model = self.catalog.resolve(request.task, request.message)
        request = await self._read_documents(request)
        images, size = request.images, request.task.size(request.message)
        if images:
            if self.fetcher.fetches(images):
                images = await self.fetcher.fetch(images)
            work = sum(len(image) for image in images if isinstance(image, str | bytes))
            images, pixels = await self.in_pool(work, measure_images, images, model.task_limits)
            await reserve(sum(pixels))
            header = request.task.header(request.message, model)
            images = await self._decode_images(images, pixels, model, header)
        prepare = request.task.prepare
        return await self.in_pool(size, prepare, request.message, images, model)

    async def _read_documents(self, request: TaskRequest) -> TaskRequest:
        """The request with the texts of its documents.

        Raises:
            ServingError: one cannot be read; names it.
        """
        read: dict[str, list[str]] = {}
        for field in request.task.declaration.documents:
            texts = list(getattr(request.message, field))
            for place, text in enumerate(texts):
                if not is_document(text):
                    continue
                try:
                    expected_s = _S_PER_DOCUMENT_BYTE * len(text)
                    texts[place] = await self.in_process(expected_s, document_text, text)
                except ServingError as error:
                    error.field = f"{field}.{place}"
                    raise
            read[field] = texts
        if not read:
            return request
        return replace(request, message=request.message.model_copy(update=read))

    async def _decode_images(
        self,
        images: Sequence[ImageInput],
        pixels: Sequence[int],
        model: LoadedModel,
        header: str | None,
    ) -> Sequence[ImageInput]:
        """Images at the model's size, or why there are none.

        Args:
            images: As bytes; others are left as they are.
            pixels: Of each.
            model: The model that takes them.
            header: Drawn above each of them.
        """
        spec = model.manifest.image

        async def decode(image: ImageInput, size: int) -> ImageInput:
            if not isinstance(image, bytes) or spec is None:
                return image
            expected_s = _S_PER_PIXEL * size + _S_PER_BYTE * len(image)
            arguments = (image, model.task_limits.image, spec, header)
            try:
                return await self.in_process(expected_s, read_image, *arguments)
            except ServingError as error:
                return error

        if len(images) == 1:
            return [await decode(images[0], pixels[0])]
        async with asyncio.TaskGroup() as group:
            work = [group.create_task(decode(*one)) for one in zip(images, pixels, strict=True)]
        return [task.result() for task in work]

    async def _run(
        self,
        route: str,
        make_plan: MakePlan,
        reserve: Reserve,
        stream: ChunkStream | None = None,
    ) -> tuple[TaskResponse | None, Timings]:
        """Plan an admitted request and run its calls, again if their version is not loaded now.

        Returns:
            Its response, unless it is a stream, and where its time went.

        Raises:
            ServingError: out of time, refused, or no item succeeded.
        """
        await self.admission.agree("requests", "bytes")

        async def reserve_pixels(pixels: int) -> None:
            reserve(pixels)
            await self.admission.agree("pixels")

        limit_s = min(self._timeout_s, TIMEOUT_S.get())  # the gateway's, or its client's
        times = RequestTimes(self.metrics, route, limit_s)
        plan_again = partial(make_plan, reserve_pixels)
        is_planned_again = False
        try:
            async with asyncio.timeout(limit_s):
                plan = await plan_again(None)
                assert plan is not None, "no call of it has run yet"
                times.note_plan()
                while plan is not None:
                    parts = plan, self.calls, self.admission, times
                    last = (
                        PlanRun(*parts) if stream is None else StreamRun(*parts, stream, plan_again)
                    )
                    await last.run()
                    plan = last.following()
                    if last.unloaded is not None and not is_planned_again:
                        plan, is_planned_again = await plan_again(last.unloaded), True
                timings = times.until_now(last.sent_s)
                response = await last.finish(self.in_pool)
        except TimeoutError:
            raise DeadlineExceeded(
                f"no response within {limit_s:g} s: send a smaller request"
            ) from None
        self.metrics.observe_timings(route, timings)
        return response, timings

    def _refuse_if_draining(self) -> None:
        if self.is_draining:
            raise shutting_down()


def shutting_down() -> Unavailable:
    """The error of requests that a gateway which shuts down does not finish."""
    return Unavailable(f"{SHUTTING_DOWN}: try another", retry_after_s=1)


_MAPS = {"logit_bias", "glossary", "terms"}


def from_validation(error: ValidationError) -> InvalidRequest:
    """The first fault that a message's schema found; never the user's text."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", "invalid")
        return MalformedBody(f"the body is not JSON: {reason}")
    # Keys of a map are the user's text, so the map is named instead.
    place = first["loc"][:1] if first["loc"] and first["loc"][0] in _MAPS else first["loc"]
    field = ".".join(str(part) for part in place) or None
    value = first.get("input")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    got = f", got {value}" if is_number and abs(value) < 1e15 else ""
    message = first["msg"].removeprefix("Value error, ")
    return InvalidRequest(f"{field or 'the body'}: {message}{got}", field=field)


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


def _tracer(settings: GatewaySettings) -> Tracer:
    if settings.otlp_endpoint is None:
        return Tracer()
    try:
        otlp = import_module("serving.gateway.observability.otlp")
    except ModuleNotFoundError:
        raise SetupError(
            "exporting traces needs OpenTelemetry: pip install 'triptych[otlp]', or unset "
            "--otlp-endpoint and $OTEL_EXPORTER_OTLP_ENDPOINT"
        ) from None
    tracer: Tracer = otlp.OtlpTracer(str(settings.otlp_endpoint))
    return tracer
