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

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from inference.errors import InvalidRequest, MalformedBody, ServingError
from inference.tasks import TASKS
from inference.tasks.shared.served_task import AnyTask
from serving.gateway.http.bodies import JSON, dump_vectors, read_json, read_message
from serving.gateway.http.openapi import CONDITIONS, TASK_ERRORS, events, json_content, task_content
from serving.gateway.http.preconditions import etag, preconditions
from serving.gateway.http.router import (
    Dialect,
    Handler,
    Route,
    json_error,
    path_parameter,
    respond,
)
from serving.gateway.requests.service import Service, TaskRequest, TaskResponse
from triptych.glossaries.messages import (
    Glossary,
    GlossaryInfo,
    GlossaryList,
    GlossaryName,
    GlossaryUpload,
    ListGlossariesRequest,
)
from triptych.messages import Chunk, ErrorBody, ErrorResponse, Model, ModelList

_GLOSSARIES = "/v1/glossaries"
_GLOSSARY_NAME = path_parameter("name", pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")


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
        return b"data: [DONE]\n\n"

    def error(self, error: ServingError) -> bytes:
        """An `error` event."""
        return b"event: error\ndata: %b\n\n" % _error_body(error).encode()


class NativeDialect(Dialect):
    """Triptych's own HTTP API."""

    shows_timings = True

    def routes(self) -> Iterator[Route]:
        """`POST /v1/<task>` for each task, `GET /v1/models` and one of it, and `/v1/glossaries`."""
        for task in TASKS.values():
            yield self._task_route(task)
        yield Route(
            "/v1/models",
            self.require_key(self._models),
            "List the served models with their limits.",
            ModelList,
            (401, 500),
            name="models",
        )
        yield Route(
            "/v1/models/{name:path}",  # a name with a slash is unknown as a model, not as a path
            self.require_key(self._model),
            "One served model with its limits.",
            Model,
            (404, 500, 401),
            name="model",
            parameters=[path_parameter("name")],
        )
        yield self._glossary_route(
            "PUT",
            self._put_glossary,
            "Store a glossary, or replace the one of that name.",
            GlossaryInfo,
            statuses=(413, 415, 422, 429, 503),
            content=json_content(GlossaryUpload),
        )
        unchanged = {"description": "The glossary has a tag that If-None-Match names."}
        found = "A stored glossary with its terms."
        yield self._glossary_route(
            "GET", self._glossary, found, Glossary, responses={304: unchanged}
        )
        yield self._glossary_route(
            "DELETE", self._delete_glossary, "Delete a stored glossary.", GlossaryInfo
        )
        yield Route(
            _GLOSSARIES,
            self.require_key(self._glossaries),
            "The stored glossaries, without terms.",
            GlossaryList,
            (404, 500, 401),
        )

    async def parse(self, request: Request, task: AnyTask, service: Service) -> TaskRequest:
        """The body is the task's message, as JSON or, with image files, as multipart."""
        declaration = task.declaration
        message, images = await read_message(request, declaration.request, service)
        return TaskRequest(task, message, declaration.path, images)

    def render_answer(self, request: TaskRequest, response: TaskResponse) -> Response:
        """The response message as JSON."""
        if not request.task.has_vectors:
            return _json(response)
        return Response(dump_vectors(response, exclude_none=True), media_type=JSON)

    def render_stream(self, request: TaskRequest) -> NativeStream:
        """Server-sent events."""
        return NativeStream()

    def render_error(self, error: ServingError) -> Response:
        """`{"error": {"type": …, "message": …, "field": …}}` with the error's status."""
        return json_error(error, _error_body(error))

    def _task_route(self, task: AnyTask) -> Route:
        async def serve(request: Request, service: Service) -> Response:
            return await respond(self, request, task, service)

        declaration = task.declaration
        event = (
            "A server-sent event: a `Chunk` as JSON, or `[DONE]`; `error` events have an "
            "`ErrorResponse`."
        )
        return Route(
            declaration.path,
            serve,
            declaration.summary,
            declaration.response,
            TASK_ERRORS,
            name=task.name,
            content=task_content(declaration),
            responses={200: events(event)} if declaration.streams else {},
        )

    def _glossary_route(
        self,
        method: str,
        handler: Handler,
        summary: str,
        answer: type[BaseModel],
        statuses: Sequence[int] = (422,),
        **described: Any,
    ) -> Route:
        return Route(
            f"{_GLOSSARIES}/{{name}}",
            self.require_key(handler),
            summary,
            answer,
            (404, 500, *statuses, 401, 400, 412),
            methods=(method,),
            parameters=[_GLOSSARY_NAME, *CONDITIONS],
            **described,
        )

    async def _models(self, request: Request, service: Service) -> Response:
        return _json(service.catalog.listing())

    async def _model(self, request: Request, service: Service) -> Response:
        return _json(service.model(request.path_params["name"]))

    async def _put_glossary(self, request: Request, service: Service) -> Response:
        name, conditions = _name(request).name, preconditions(request.headers)
        if "content-range" in request.headers:  # RFC 9110, section 14.5
            raise MalformedBody("a glossary is stored whole: send no content-range")
        body = await read_json(request, GlossaryUpload, service)
        if body.name not in (None, name):
            raise InvalidRequest("name differs from that of the path: leave it out", field="name")
        made = Glossary.model_construct(
            name=name, terms=body.terms, source=body.source, target=body.target
        )
        return _json(*await service.glossaries.put(made, conditions.check))

    async def _glossary(self, request: Request, service: Service) -> Response:
        conditions = preconditions(request.headers)
        found, version = await service.glossaries.get(_name(request))
        conditions.check_match(version)
        if conditions.is_known(version):
            return Response(status_code=304, headers={"etag": etag(version)})
        return _json(found, version)

    async def _glossaries(self, request: Request, service: Service) -> Response:
        return _json(await service.glossaries.listing(ListGlossariesRequest()))

    async def _delete_glossary(self, request: Request, service: Service) -> Response:
        conditions = preconditions(request.headers)
        return _json(await service.glossaries.delete(_name(request), conditions.check))


def _error_body(error: ServingError) -> str:
    body = ErrorBody(type=error.wire, message=error.message, field=error.field)
    return ErrorResponse(error=body).model_dump_json(exclude_none=True)


def _json(message: BaseModel, version: str | None = None) -> Response:
    return Response(
        message.model_dump_json(exclude_none=True),
        headers=None if version is None else {"etag": etag(version)},
        media_type="application/json",
    )


def _name(request: Request) -> GlossaryName:
    """The name in the path.

    Raises:
        pydantic.ValidationError: no glossary can have it.
    """
    return GlossaryName(name=request.path_params["name"])
