"""Triptych's own HTTP API: one route for each task, `/v1/models`, and stored glossaries.

Streams are server-sent events (HTML standard, section 9.2):

```
data: {"index":0,"text":"Hello"}

data: {"index":0,"text":".","finish_reason":"stop","usage":{"prompt_tokens":3,…}}

data: [DONE]
```

An error after the headers is an `error` event, and the stream ends without `[DONE]`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel
from starlette.datastructures import Headers

from inference.errors import ServingError
from inference.tasks import TASKS
from inference.tasks.shared.served_task import AnyTask
from serving.gateway.admission.auth import Keys
from serving.gateway.dialects.glossary_routes import glossary_routes
from serving.gateway.http.bodies import read_message
from serving.gateway.http.handle_request import respond
from serving.gateway.http.http_errors import json_error
from serving.gateway.http.openapi import SECURITY, errors, operation
from serving.gateway.requests.service import Service
from serving.gateway.requests.task_request import TaskRequest, TaskResponse
from triptych.messages import Chunk, ErrorBody, ErrorResponse, ModelList

_DONE = b"data: [DONE]\n\n"


class NativeStream:
    """Server-sent events, one a chunk."""

    media_type = "text/event-stream"

    def chunks(self, chunks: Sequence[Chunk]) -> bytes:
        """`data` events."""
        return b"".join(
            b"data: %b\n\n" % chunk.model_dump_json(exclude_none=True).encode() for chunk in chunks
        )

    def end(self) -> bytes:
        """`[DONE]`, as in OpenAI's API."""
        return _DONE

    def error(self, error: ServingError) -> bytes:
        """An `error` event."""
        return b"event: error\ndata: %b\n\n" % _error_body(error).encode()


class NativeDialect:
    """Triptych's own HTTP API.

    Args:
        keys: Required of every request, if there are any.
    """

    shows_timings = True

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    def router(self, service: Service) -> APIRouter:
        """`POST /v1/<task>` for each task, `GET /v1/models`, and `/v1/glossaries`."""
        router = APIRouter()
        for task in TASKS.values():
            router.add_api_route(
                task.declaration.path,
                self._endpoint(task, service),
                methods=["POST"],
                name=task.name,
                summary=task.declaration.summary,
                response_model=task.declaration.response,
                **operation(task.declaration, has_key=self._keys.are_required),
            )

        async def models(request: Request) -> Response:
            self.authorise(request.headers)
            return _json(service.models())

        router.add_api_route(
            "/v1/models",
            models,
            methods=["GET"],
            summary="List the served models with their limits.",
            response_model=ModelList,
            responses=errors(401, 500) if self._keys.are_required else errors(500),
            openapi_extra=SECURITY if self._keys.are_required else None,
        )
        glossary_routes(router, service, self.authorise, has_key=self._keys.are_required)
        return router

    def authorise(self, headers: Headers) -> None:
        """Check `Authorization: Bearer KEY`."""
        self._keys.check_header(headers.get("authorization"))

    async def parse(self, request: Request, task: AnyTask, service: Service) -> TaskRequest:
        """The body is the task's message, as JSON or, with image files, as multipart."""
        declaration = task.declaration
        message, images = await read_message(request, declaration.request, service)
        return TaskRequest(task, message, declaration.path, images)

    def render_answer(self, request: TaskRequest, response: TaskResponse) -> Response:
        """The response message as JSON."""
        return _json(response)

    def render_stream(self, request: TaskRequest) -> NativeStream:
        """Server-sent events."""
        return NativeStream()

    def render_error(self, error: ServingError) -> Response:
        """`{"error": {"type": …, "message": …, "field": …}}` with the error's status."""
        return json_error(error, _error_body(error))

    def _endpoint(
        self, task: AnyTask, service: Service
    ) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        async def endpoint(request: Request) -> Response:
            return await respond(self, request, task, service)

        return endpoint


def _error_body(error: ServingError) -> str:
    body = ErrorBody(type=error.wire, message=error.message, field=error.field)
    return ErrorResponse(error=body).model_dump_json(exclude_none=True)


def _json(message: BaseModel) -> Response:
    return Response(message.model_dump_json(exclude_none=True), media_type="application/json")
