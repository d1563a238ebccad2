"""The OpenAPI document, which FastAPI makes of the routes' descriptions. It serves none of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from serving.gateway.http.bodies import MULTIPART
from serving.gateway.http.preconditions import CONDITION
from serving.gateway.http.router import Route
from triptych import __version__
from triptych.messages import Chunk, ErrorResponse
from triptych.task import IMAGES, Task

TITLE = "Triptych"
SUMMARY = "Vision-and-language models exported to ONNX, served by Triton."

_REF = "#/components/schemas/{model}"
TASK_ERRORS = (400, 404, 413, 415, 422, 429, 500, 503, 504, 401)
"""Statuses of a request of a task, in whatever dialect."""
KEY_ERRORS = frozenset({401, 403})
"""Those of routes that require a key."""
_RETRYABLE = (429, 503)
_CROSS_SITE, _UNKNOWN_HOST = 403, 421
_READING = frozenset({"get", "head", "options"})
SECURITY: dict[str, Any] = {"security": [{"key": []}]}
"""`openapi_extra` of a route that requires the gateway's key."""
_TAGS = "Entity tags, each in double quotes, or `*`"
_CONDITION = {"type": "string", "pattern": CONDITION}
CONDITIONS: list[dict[str, Any]] = [
    {"name": name, "in": "header", "description": f"{_TAGS}: {then}", "schema": _CONDITION}
    for name, then in (
        ("If-Match", "412 unless the stored one has such a tag."),
        ("If-None-Match", "412, or 304 to a GET, if the stored one has such a tag."),
    )
]
"""Parameters of a route with preconditions."""
_SCHEMES = {"key": {"type": "http", "scheme": "bearer"}}
_DESCRIPTIONS = {
    400: "The body is not what its content type says.",
    401: "No key, or the wrong one.",
    403: "The wrong key, or a page of another site sent the request.",
    404: "No such model.",
    412: "What is stored is not what If-Match or If-None-Match requires.",
    413: "The body or an image is too large.",
    415: "The content type is not that of the path, or an image cannot be read.",
    421: "The Host header has a name that the gateway is not served under.",
    422: "A field is not valid, or the request exceeds a limit.",
    429: "Too many requests: retry after `Retry-After` seconds.",
    500: "A bug: the log has the cause.",
    503: "Not ready or shutting down: retry after `Retry-After` seconds.",
    504: "No response in time.",
}


def errors(statuses: Iterable[int], message: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """`responses` of a route that may fail with these statuses, with this body."""
    retry = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
    return {
        status: {
            "model": message,
            "description": _DESCRIPTIONS[status],
            **({"headers": retry} if status in _RETRYABLE else {}),
        }
        for status in statuses
    }


def events(description: str) -> dict[str, Any]:
    """The response 200 of a route that may stream.

    Args:
        description: Of one server-sent event.
    """
    event = {
        "type": "object",
        "description": description,
        "properties": {
            "event": {"type": "string", "enum": ["message", "error"]},
            "data": {"type": "string"},
        },
        "required": ["data"],
    }
    content = {"text/event-stream": {"schema": event}}
    return {"content": content, "description": "The response, or its events."}


def openapi_route(
    routes: Sequence[tuple[type[BaseModel], Route]],
    messages: Sequence[type[BaseModel]],
    *,
    has_key: bool,
    has_origin_gate: bool,
) -> Route:
    """`/openapi.json`: a document that is made once, for the first request.

    Args:
        routes: All others, each with the body of its errors.
        messages: Requests, which are among the document's components.
        has_key: Whether some routes require a key.
        has_origin_gate: Whether hosts and sites are refused, on every path.
    """

    def document() -> bytes:
        made = get_openapi(
            title=TITLE,
            version=__version__,
            summary=SUMMARY,
            routes=[
                _describe(route, error, has_key=has_key)
                for error, route in routes
                if route.is_documented
            ],
        )
        made["components"]["schemas"] |= _components([*messages, Chunk])
        if has_origin_gate:
            _add_gate(made["paths"])
        if has_key:
            made["components"]["securitySchemes"] = _SCHEMES
        return bytes(JSONResponse(made).body)

    making: asyncio.Task[bytes] | None = None

    async def respond(request: Request, service: object) -> Response:
        nonlocal making
        if making is None:  # half a second, in which the event loop serves other requests
            making = asyncio.create_task(asyncio.to_thread(document))
        return Response(await asyncio.shield(making), media_type="application/json")

    return Route("/openapi.json", respond, methods=("GET", "HEAD"), is_documented=False)


def _describe(route: Route, error: type[BaseModel], *, has_key: bool) -> APIRoute:
    """A route in the form that FastAPI describes; it serves nothing."""

    async def endpoint() -> None: ...

    statuses = [one for one in route.statuses if has_key or one not in KEY_ERRORS]
    extra: dict[str, Any] = {}
    if route.parameters is not None:
        extra["parameters"] = route.parameters
    if route.content is not None:
        extra["requestBody"] = {"content": route.content, "required": True}
    if 401 in statuses:
        extra |= SECURITY
    return APIRoute(
        route.path,
        endpoint,
        methods=[route.methods[0]],
        name=route.name,
        summary=route.summary,
        description=route.description,
        response_model=route.answer,
        responses={**errors(statuses, error), **route.responses},
        openapi_extra=extra or None,
        response_class=Response if route.answer is None else JSONResponse,
    )


def _add_gate(paths: Mapping[str, Mapping[str, Any]]) -> None:
    """Document what the gate answers. It does so before any route, so with one body for all."""
    content = json_content(ErrorResponse)
    for methods in paths.values():
        for verb, operation in methods.items():
            responses = operation["responses"]
            for status in (_UNKNOWN_HOST, *(() if verb in _READING else (_CROSS_SITE,))):
                described = {"description": _DESCRIPTIONS[status], "content": content}
                responses.setdefault(str(status), described)


def _components(messages: Iterable[type[BaseModel]]) -> dict[str, Any]:
    _, schema = models_json_schema(
        [(message, "validation") for message in messages], ref_template=_REF
    )
    components: dict[str, Any] = schema["$defs"]
    return components


def json_content(message: type[BaseModel]) -> dict[str, Any]:
    """The content of a body: a message of the document's components as JSON."""
    return {"application/json": {"schema": reference(message)}}


def reference(message: type[BaseModel]) -> dict[str, str]:
    """The schema of a message of the document's components."""
    return {"$ref": _REF.format(model=message.__name__)}


def task_content(task: Task) -> dict[str, Any]:
    """The content of the body of a task's route."""
    content = json_content(task.request)
    if task.takes_images:
        content[MULTIPART] = {"schema": _form(task.request)}
    return content


def _form(message: type[BaseModel]) -> dict[str, Any]:
    """The message with `images` as files."""
    schema = message.model_json_schema(ref_template=_REF)
    schema.pop("$defs", None)
    properties = schema["properties"]
    for name, field in properties.items():
        properties[name] = drop_null(field)
    properties[IMAGES] = {
        "type": "array",
        "items": {"type": "string", "format": "binary"},
        "minItems": 1,
        "description": "Image files.",
    }
    return schema


def drop_null(field: dict[str, Any]) -> dict[str, Any]:
    """A field of a form, from one of a message: absent, or text; there is no null."""
    field = {name: value for name, value in field.items() if name != "default"}
    kinds = [kind for kind in field.pop("anyOf", []) if kind != {"type": "null"}]
    return field | (kinds[0] if len(kinds) == 1 else {"anyOf": kinds} if kinds else {})
