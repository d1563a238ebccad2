"""Dispatch behind every protocol: task request → model → plan → response or stream."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any, TypeAlias, TypeVar

from inference.errors import ServingError, SetupError, UnknownModel
from inference.processing.prepared_image import read_image
from inference.tasks.shared.image_inputs import ImageInput, measured
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.model_calls import Call
from inference.tasks.shared.served_task import AnyTask, Plan
from serving.gateway.admission.auth import Keys
from serving.gateway.admission.counts import Counts
from serving.gateway.observability.metrics import Metrics, Timings
from serving.gateway.observability.trace_context import TRACE, Tracer
from serving.gateway.requests.catalog import Catalog
from serving.gateway.requests.chunk_stream import ChunkStream
from serving.gateway.requests.execution import Execution, Preparation, ReservePixels
from serving.gateway.requests.glossaries import Glossaries
from serving.gateway.requests.image_urls import ImageFetcher
from serving.gateway.triton_client.pool import TritonPool
from serving.settings.gateway_settings import GatewaySettings
from triptych.messages import Model, ModelList, Request, Response

_NAME = re.compile(r"[\w./:-]{1,200}", re.ASCII)
"""What an error repeats of a model's name: no text of a user is in it."""

P = TypeVar("P", bound=Plan)
TaskResponse: TypeAlias = Response[Any]

_SWITCH_S = 30.0
"""For the other parts of a bundle to be loaded, and the catalog to follow."""
_SWITCH_POLL_S = 0.1
_S_PER_PIXEL, _S_PER_BYTE = 30e-9, 20e-9
"""About what decoding and resizing take."""
EXPORT_S = 2.0
"""For the last spans, when the gateway ends."""


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
    """The tasks of a gateway's models. Lives on one event loop.

    Args:
        pool: The servers; closed by `close`.
        settings: Limits.
        metrics: Timings are recorded there.
        counts: What is admitted now, if other processes admit requests too.

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
        self.execution = Execution(pool, settings, metrics, counts)
        self.glossaries = Glossaries(settings.glossaries)
        self.fetcher = ImageFetcher(settings)

    async def completed(self, request: TaskRequest) -> TaskRequest:
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
        return await self.execution.answer(self._preparation(request))

    def stream(self, request: TaskRequest) -> ChunkStream:
        """The response of a request as chunks.

        Raises:
            ServingError: no model, or the gateway is shutting down.
        """
        return self.execution.stream(self._preparation(request))

    def models(self) -> ModelList:
        """The served models."""
        return self.catalog.listing()

    def model(self, name: str) -> Model:
        """A served model.

        Raises:
            UnknownModel: there is none of that name.
        """
        if name not in self.catalog.names and _NAME.fullmatch(name):
            raise UnknownModel(
                f"the model {name} is not served: GET /v1/models lists those that are"
            )
        return self.catalog.entry(self.catalog.named(name))

    async def close(self) -> None:
        """Release threads and connections."""
        await self.execution.close()
        await self.fetcher.close()
        await asyncio.to_thread(self.tracer.close, EXPORT_S)

    def _preparation(self, request: TaskRequest) -> Preparation:
        """How a request is planned for the model that serves it."""
        model = self.catalog.resolve(request.task, request.message)
        if (trace := TRACE.get()) is not None:
            trace.annotate({"triptych.task": request.task.name, "triptych.model": model.name})
        return Preparation(
            request.route,
            partial(self._plan, request, model),
            partial(self._plan_again, request, model),
        )

    async def _plan(self, request: TaskRequest, model: LoadedModel, reserve: ReservePixels) -> Plan:
        """A request's plan, made off the event loop where that is much work."""
        images, size = request.images, request.task.size(request.message)
        if images:
            if self.fetcher.fetches(images):
                images = await self.fetcher.fetched(images)
            work = sum(len(image) for image in images if isinstance(image, str | bytes))
            images, pixels = await self.execution.in_pool(work, measured, images, model.task_limits)
            await reserve(sum(pixels))
            header = request.task.header(request.message, model)
            images = await self._decoded(images, pixels, model, header)
        prepare = request.task.prepare
        return await self.execution.in_pool(size, prepare, request.message, images, model)

    async def _decoded(
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

        async def decoded(image: ImageInput, size: int) -> ImageInput:
            if not isinstance(image, bytes) or spec is None:
                return image
            expected_s = _S_PER_PIXEL * size + _S_PER_BYTE * len(image)
            arguments = (image, model.task_limits.image, spec, header)
            try:
                return await self.execution.in_process(expected_s, read_image, *arguments)
            except ServingError as error:
                return error

        if len(images) == 1:
            return [await decoded(images[0], pixels[0])]
        async with asyncio.TaskGroup() as group:
            work = [group.create_task(decoded(*one)) for one in zip(images, pixels, strict=True)]
        return [task.result() for task in work]

    async def planned_again(
        self, before: LoadedModel, call: Call, plan: Callable[[bool], Awaitable[P]]
    ) -> P | None:
        """A request's plan for the version that replaced the one it was planned for.

        Two versions whose Triton configurations differ cannot overlap: a call that waited in the
        gateway at the moment of the switch finds its version gone. The catalog follows Triton
        within a second, and the parts of a bundle are replaced one after the other.

        Args:
            before: The version that it was planned for.
            call: What Triton has refused.
            plan: Makes the plan, given whether another version is served.

        Returns:
            None if no version of the called model is loaded: it is being restarted.
        """
        pool = self.execution.calls.pool
        until_s = time.monotonic() + _SWITCH_S
        while time.monotonic() < until_s and await pool.served_version(call.model):
            if self.catalog.version(before.name) != before.manifest.version:
                return await plan(True)
            if await pool.is_ready(call.model, call.version):
                return await plan(False)
            await asyncio.sleep(_SWITCH_POLL_S)
        return None

    async def _plan_again(
        self, request: TaskRequest, before: LoadedModel, reserve: ReservePixels, call: Call
    ) -> Plan | None:
        """The plan of a task's request for the version that is served by now."""

        async def plan(is_changed: bool) -> Plan:
            found = self.catalog.resolve(request.task, request.message) if is_changed else before
            return await self._plan(request, found, reserve)

        return await self.planned_again(before, call, plan)


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
