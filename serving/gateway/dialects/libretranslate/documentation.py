"""How OpenAPI documents these routes."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from serving.gateway.dialects.libretranslate.bodies import FORM
from serving.gateway.dialects.libretranslate.exchange import FINISH_REASON, LibreTranslateError
from serving.gateway.http.bodies import JSON, MULTIPART
from serving.gateway.http.openapi import SECURITY, errors, without_null

_STATUSES = (400, 413, 429, 500, 503, 504)
_KEY = (401, 403)
_REASON = {
    "description": "length: the limit of tokens cut a translation; else stop.",
    "schema": {"type": "string", "enum": ["stop", "length"]},
}


def open_route(response: Any) -> dict[str, Any]:
    """Arguments of `add_api_route` of a route that needs no key."""
    return {"response_model": response, "responses": described(500)}


def posted(
    body: type[BaseModel], response: Any, *, has_key: bool, translates: bool = False
) -> dict[str, Any]:
    """Arguments of `add_api_route` of a route that takes JSON and forms."""
    content = {JSON: {"schema": {"$ref": f"#/components/schemas/{body.__name__}"}}}
    content |= {kind: {"schema": form_of(body)} for kind in (FORM, MULTIPART)}
    return documented(content, response, has_key=has_key, translates=translates)


def form_of(body: type[BaseModel], *files: str) -> dict[str, Any]:
    """The message as a form, with further fields that are files."""
    schema = body.model_json_schema()
    properties = {name: without_null(field) for name, field in schema["properties"].items()}
    properties |= {name: {"type": "string", "format": "binary"} for name in files}
    required = [*schema.get("required", ()), *files]
    return schema | {"properties": properties, "required": required}


def documented(
    content: dict[str, Any], response: Any, *, has_key: bool, translates: bool
) -> dict[str, Any]:
    """Arguments of `add_api_route`.

    Args:
        content: Content type → what is documented of it.
        response: Type of the answer's body.
        has_key: Whether the route requires a key.
        translates: Whether answers have the header `FINISH_REASON`.
    """
    responses = described(*_STATUSES, *(_KEY if has_key else ()))
    if translates:
        responses[200] = {"headers": {FINISH_REASON: _REASON}}
    return {
        "response_model": response,
        "responses": responses,
        "openapi_extra": {
            "requestBody": {"content": content, "required": True},
            **(SECURITY if has_key else {}),
        },
    }


def described(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The statuses as other routes document them, with this API's body of an error."""
    found = errors(*statuses)
    for response in found.values():
        response["model"] = LibreTranslateError
    return found
