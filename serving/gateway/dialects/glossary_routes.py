"""Routes of stored glossaries: `/v1/glossaries`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel
from starlette.datastructures import Headers

from inference.errors import InvalidRequest
from serving.gateway.http.bodies import read_json
from serving.gateway.http.openapi import SECURITY, errors
from serving.gateway.requests.service import Service
from triptych.glossaries import (
    Glossary,
    GlossaryInfo,
    GlossaryList,
    GlossaryName,
    GlossaryUpload,
    ListGlossariesRequest,
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

Use = Callable[[Request], Awaitable[BaseModel]]


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

    async def put(request: Request) -> BaseModel:
        name = _name(request).name
        body = await read_json(request, GlossaryUpload, service)
        if body.name not in (None, name):
            raise InvalidRequest("name differs from that of the path: leave it out", field="name")
        made = Glossary.model_construct(
            name=name, terms=body.terms, source=body.source, target=body.target
        )
        return await glossaries.put(made)

    async def get(request: Request) -> BaseModel:
        return await glossaries.get(_name(request))

    async def listed(request: Request) -> BaseModel:
        return await glossaries.listing(ListGlossariesRequest())

    async def delete(request: Request) -> BaseModel:
        return await glossaries.delete(_name(request))

    def add(
        verb: str, path: str, use: Use, summary: str, response: Any, statuses: tuple[int, ...]
    ) -> None:
        async def endpoint(request: Request) -> Response:
            authorise(request.headers)
            found = (await use(request)).model_dump_json(exclude_none=True)
            return Response(found, media_type="application/json")

        extra: dict[str, Any] = {**(SECURITY if has_key else {})}
        if path == _ONE:
            extra["parameters"] = [_NAME]
        if verb == "PUT":
            extra["requestBody"] = _BODY
        router.add_api_route(
            path,
            endpoint,
            methods=[verb],
            summary=summary,
            response_model=response,
            responses=errors(404, 500, *statuses, *((401,) if has_key else ())),
            openapi_extra=extra,
        )

    summary = "Store a glossary, or replace the one of that name."
    add("PUT", _ONE, put, summary, GlossaryInfo, (400, 413, 415, 422, 429, 503))
    add("GET", _ONE, get, "A stored glossary with its terms.", Glossary, (422,))
    add("DELETE", _ONE, delete, "Delete a stored glossary.", GlossaryInfo, (422,))
    add("GET", _PATH, listed, "The stored glossaries, without terms.", GlossaryList, ())


def _name(request: Request) -> GlossaryName:
    """The name in the path.

    Raises:
        pydantic.ValidationError: no glossary can have it.
    """
    return GlossaryName(name=request.path_params["name"])
