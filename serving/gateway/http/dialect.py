"""The interface of dialects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fastapi import APIRouter, Request, Response
from starlette.datastructures import Headers

from inference.errors import ServingError
from inference.tasks.shared.served_task import AnyTask
from serving.gateway.requests.service import Service, TaskRequest, TaskResponse
from triptych.messages import Chunk


class StreamRenderer(Protocol):
    """The form of one streamed response; it may keep state between chunks."""

    media_type: str

    def chunks(self, chunks: Sequence[Chunk]) -> bytes:
        """Chunks that are sent together."""
        ...

    def end(self) -> bytes:
        """The end of a stream that succeeded."""
        ...

    def error(self, error: ServingError) -> bytes:
        """The end of a stream that failed."""
        ...


class Routes(Protocol):
    """One HTTP API, as the application sees it."""

    def router(self, service: Service) -> APIRouter:
        """The routes, with their documentation."""
        ...

    def render_error(self, error: ServingError) -> Response:
        """A failed request."""
        ...


class Dialect(Routes, Protocol):
    """One HTTP API whose requests are one of a task each: its routes call `respond`."""

    shows_timings: bool
    """Whether responses have headers that show where their time went."""

    def authorise(self, headers: Headers) -> None:
        """Check a request before its body is read.

        Raises:
            Unauthorized: it may not be served.
        """
        ...

    async def parse(self, request: Request, task: AnyTask, service: Service) -> TaskRequest:
        """The task request of an HTTP request.

        Raises:
            ServingError: the body cannot be read.
            pydantic.ValidationError: a field is not valid.
        """
        ...

    def render_answer(self, request: TaskRequest, response: TaskResponse) -> Response:
        """A complete response.

        Raises:
            ServingError: the dialect has no form for this answer.
        """
        ...

    def render_stream(self, request: TaskRequest) -> StreamRenderer:
        """The form of a streamed response."""
        ...
