"""Dispatch behind every protocol: task request → model → plan → response or stream."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from serving.gateway.answers import Answer, TaskRequest
from serving.gateway.catalog import Catalog
from serving.gateway.chunk_stream import ChunkStream
from serving.gateway.execution import Execution
from serving.gateway.inference import Inference
from serving.gateway.metrics import Metrics
from serving.planning.served_task import Plan
from serving.settings import GatewaySettings
from triptych.messages import ModelList


class Service:
    """The tasks of a gateway's models. Lives on one event loop.

    Args:
        catalog: The models.
        inference: Runs them; closed by `close`.
        settings: Limits.
        metrics: Timings are recorded there.
    """

    def __init__(
        self, catalog: Catalog, inference: Inference, settings: GatewaySettings, metrics: Metrics
    ) -> None:
        self.catalog = catalog
        self.settings = settings
        self.metrics = metrics
        self.execution = Execution(inference, settings, metrics)
        self._limits = settings.task_limits

    async def answer(self, request: TaskRequest) -> Answer:
        """The response of a request.

        Raises:
            ServingError: no model, refused, out of time, or no item succeeded.
        """
        prepare, size = self._prepare(request)
        return await self.execution.answer(prepare, size, request.route)

    def stream(self, request: TaskRequest) -> ChunkStream:
        """The response of a request as chunks.

        Raises:
            ServingError: no model, or the gateway is shutting down.
        """
        prepare, size = self._prepare(request)
        return self.execution.stream(prepare, size, request.route)

    def models(self) -> ModelList:
        """The served models."""
        return self.catalog.listing(self.settings)

    async def close(self) -> None:
        """Release threads and connections."""
        await self.execution.close()

    def _prepare(self, request: TaskRequest) -> tuple[Callable[[], Plan], int | None]:
        """Makes the request's plan; and the size of that work."""
        task, message = request.task, request.message
        model = self.catalog.resolve(task, message)
        prepare = partial(task.prepare, message, request.images, model, self._limits)
        return prepare, task.size(message)
