"""OpenAPI for what FastAPI cannot derive: the routes read their bodies themselves."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from serving.gateway.dialects.bodies import MULTIPART
from triptych.messages import ErrorResponse
from triptych.task import IMAGES, Task

_REF = "#/components/schemas/{model}"
_TASK_ERRORS = (400, 404, 413, 422, 429, 500, 503, 504)
_UNAUTHORIZED = 401
_UNSUPPORTED_IMAGE = 415
_DESCRIPTIONS = {
    400: "The body is not what its content type says.",
    401: "No key, or the wrong one.",
    404: "No such model.",
    413: "The body or an image is too large.",
    415: "An image cannot be read.",
    422: "A field is not valid, or the request exceeds a limit.",
    429: "Too many requests: retry after `Retry-After` seconds.",
    500: "A bug: the log has the cause.",
    503: "Not ready or shutting down: retry after `Retry-After` seconds.",
    504: "No response in time.",
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """`responses` of a route that may fail with these statuses."""
    return {
        status: {"model": ErrorResponse, "description": _DESCRIPTIONS[status]}
        for status in statuses
    }


def operation(task: Task, *, has_key: bool) -> dict[str, Any]:
    """Arguments of `add_api_route` that document one task's route."""
    statuses = [*_TASK_ERRORS]
    statuses += [_UNAUTHORIZED] if has_key else []
    statuses += [_UNSUPPORTED_IMAGE] if task.takes_images else []
    responses = errors(*statuses)
    if task.streams:
        events = {"text/event-stream": {"schema": {"type": "string"}}}
        responses[200] = {"content": events, "description": "The response, or its chunks."}
    return {"responses": responses, "openapi_extra": {"requestBody": _body(task)}}


def install(app: FastAPI, tasks: Iterable[Task]) -> None:
    """Serve a document whose components include the tasks' request messages."""
    messages = [task.request for task in tasks]

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(
                title=app.title, version=app.version, summary=app.summary, routes=app.routes
            )
            made["components"]["schemas"] |= _components(messages)
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _components(messages: Iterable[type[BaseModel]]) -> dict[str, Any]:
    _, schema = models_json_schema(
        [(message, "validation") for message in messages], ref_template=_REF
    )
    components: dict[str, Any] = schema["$defs"]
    return components


def _body(task: Task) -> dict[str, Any]:
    reference = {"$ref": _REF.format(model=task.request.__name__)}
    content: dict[str, Any] = {"application/json": {"schema": reference}}
    if task.takes_images:
        content[MULTIPART] = {"schema": _form(task.request)}
    return {"content": content, "required": True}


def _form(message: type[BaseModel]) -> dict[str, Any]:
    """The message with `images` as files."""
    schema = deepcopy(message.model_json_schema(ref_template=_REF))
    schema.pop("$defs", None)
    schema["properties"][IMAGES] = {
        "type": "array",
        "items": {"type": "string", "format": "binary"},
        "minItems": 1,
        "description": "Image files.",
    }
    return schema
