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

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel
from starlette.datastructures import Headers

from inference.errors import InvalidRequest, MalformedBody, ServingError
from inference.tasks import TASKS
from inference.tasks.shared.served_task import AnyTask
from serving.gateway.admission.auth import KeyedRoutes
from serving.gateway.http.bodies import read_json, read_message
from serving.gateway.http.handle_request import respond
from serving.gateway.http.http_errors import json_error
from serving.gateway.http.openapi import CONDITIONS, SECURITY, errors, operation
from serving.gateway.http.preconditions import etag, preconditions
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

_DONE = b"data: [DONE]\n\n"
_MODEL = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}


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


class NativeDialect(KeyedRoutes):
    """Triptych's own HTTP API."""

    shows_timings = True

    def router(self, service: Service) -> APIRouter:
        """`POST /v1/<task>` for each task, `GET /v1/models` and one of it, and `/v1/glossaries`."""
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
            return _json(service.catalog.listing())

        router.add_api_route(
            "/v1/models",
            models,
            methods=["GET"],
            summary="List the served models with their limits.",
            response_model=ModelList,
            responses=errors(401, 500) if self._keys.are_required else errors(500),
            openapi_extra=SECURITY if self._keys.are_required else None,
        )

        async def model(request: Request) -> Response:
            self.authorise(request.headers)
            return _json(service.model(request.path_params["name"]))

        router.add_api_route(
            "/v1/models/{name:path}",  # a name with a slash is unknown as a model, not as a path
            model,
            methods=["GET"],
            summary="One served model with its limits.",
            response_model=Model,
            responses=errors(404, 500, *((401,) if self._keys.are_required else ())),
            openapi_extra={
                "parameters": [_MODEL],
                **(SECURITY if self._keys.are_required else {}),
            },
        )
        glossary_routes(router, service, self.authorise, has_key=self._keys.are_required)
        return router

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


def _json(message: BaseModel, version: str | None = None) -> Response:
    return Response(
        message.model_dump_json(exclude_none=True),
        headers=None if version is None else {"etag": etag(version)},
        media_type="application/json",
    )


_PATH = "/v1/glossaries"
_ONE = f"{_PATH}/{{name}}"
_NAME = {
    "name": "name",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"},
}
_BODY = {
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/GlossaryUpload"}}},
    "required": True,
}

Use = Callable[[Request], Awaitable[Response]]


def glossary_routes(
    router: APIRouter, service: Service, authorise: Callable[[Headers], None], *, has_key: bool
) -> None:
    """Add the routes.

    Args:
        router: They are added to it.
        service: Has the glossaries.
        authorise: Checks a request before its body is read; it raises `Unauthorized`.
        has_key: Whether requests need a key.
    """
    glossaries = service.glossaries

    async def put(request: Request) -> Response:
        name, conditions = _name(request).name, preconditions(request.headers)
        if "content-range" in request.headers:  # RFC 9110, section 14.5
            raise MalformedBody("a glossary is stored whole: send no content-range")
        body = await read_json(request, GlossaryUpload, service)
        if body.name not in (None, name):
            raise InvalidRequest("name differs from that of the path: leave it out", field="name")
        made = Glossary.model_construct(
            name=name, terms=body.terms, source=body.source, target=body.target
        )
        return _json(*await glossaries.put_if(made, conditions.check))

    async def get(request: Request) -> Response:
        conditions = preconditions(request.headers)
        found, version = await glossaries.get_version(_name(request))
        conditions.check_match(version)
        if conditions.is_known(version):
            return Response(status_code=304, headers={"etag": etag(version)})
        return _json(found, version)

    async def listed(request: Request) -> Response:
        return _json(await glossaries.listing(ListGlossariesRequest()))

    async def delete(request: Request) -> Response:
        conditions = preconditions(request.headers)
        return _json(await glossaries.delete(_name(request), conditions.check))

    def add(
        verb: str, path: str, use: Use, summary: str, response: Any, statuses: tuple[int, ...]
    ) -> None:
        async def endpoint(request: Request) -> Response:
            authorise(request.headers)
            return await use(request)

        extra: dict[str, Any] = {**(SECURITY if has_key else {})}
        responses = errors(404, 500, *statuses, *((401,) if has_key else ()))
        if path == _ONE:
            extra["parameters"] = [_NAME, *CONDITIONS]
            responses |= errors(400, 412)
        if path == _ONE and verb == "GET":
            responses[304] = {"description": "The glossary has a tag that If-None-Match names."}
        if verb == "PUT":
            extra["requestBody"] = _BODY
        router.add_api_route(
            path,
            endpoint,
            methods=[verb],
            summary=summary,
            response_model=response,
            responses=responses,
            openapi_extra=extra,
        )

    summary = "Store a glossary, or replace the one of that name."
    add("PUT", _ONE, put, summary, GlossaryInfo, (413, 415, 422, 429, 503))
    add("GET", _ONE, get, "A stored glossary with its terms.", Glossary, (422,))
    add("DELETE", _ONE, delete, "Delete a stored glossary.", GlossaryInfo, (422,))
    add("GET", _PATH, listed, "The stored glossaries, without terms.", GlossaryList, ())


def _name(request: Request) -> GlossaryName:
    """The name in the path.

    Raises:
        pydantic.ValidationError: no glossary can have it.
    """
    return GlossaryName(name=request.path_params["name"])
