"""Routes of no dialect: probes and metrics, the page at `/`, and the documentation at `/docs`.

Probes and the page need no key. The page is a client of the HTTP API like any other: it learns from
`/v1/models` what is served, and its files, which are read once, contain no data.

`/docs` is Swagger UI over our OpenAPI document, from files of this machine alone. The page of
FastAPI loads its scripts from another host: a closed network cannot reach it, and it
decides what runs in the browser of an operator who enters a key there. The files of Swagger UI are
those of the package `fastapi-offline`; the page around them is ours.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from inference.errors import Unavailable, UnknownRoute
from serving.gateway.http.preconditions import etag, preconditions
from serving.gateway.http.router import Route
from serving.gateway.requests.health import Readiness
from serving.gateway.requests.service import Service

_JSON = "application/json"


def _object(description: str = "Yes.", **schema: object) -> dict[str, object]:
    """A response that is an object."""
    content = {_JSON: {"schema": {"type": "object", **schema}}}
    return {"description": description, "content": content}


def _flag(name: str) -> dict[str, object]:
    """The response of a probe of the Open Inference Protocol, whose clients read the field."""
    return _object(properties={name: {"type": "boolean"}}, required=[name])


_EMPTY = _object(maxProperties=0)
_READY = _object(
    "Yes; `self_check` is there where models are not checked when they are loaded.",
    properties={"self_check": {"const": "off"}},
    additionalProperties=False,
)
_METRICS: dict[str, object] = {
    "description": "Prometheus' text format.",
    "content": {CONTENT_TYPE_LATEST: {"schema": {"type": "string"}}},
}


_ALIVE = "The process responds."
_IS_READY = "Every model responds, and the gateway is not shutting down; otherwise 503 and why."


def system_routes(readiness: Readiness) -> list[Route]:
    """Liveness, readiness and metrics."""

    async def check_ready() -> None:
        problem = await readiness.problem()
        if problem:
            raise Unavailable(f"not ready: {problem}", retry_after_s=1)

    async def alive(request: Request, service: Service) -> Response:
        return Response("{}", media_type=_JSON)

    async def ready(request: Request, service: Service) -> Response:
        await check_ready()
        is_checked = service.catalog.record.self_check
        return Response("{}" if is_checked else '{"self_check":"off"}', media_type=_JSON)

    async def metrics(request: Request, service: Service) -> Response:
        return Response(service.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)

    async def server_live(request: Request, service: Service) -> Response:
        return Response('{"live":true}', media_type=_JSON)

    async def server_ready(request: Request, service: Service) -> Response:
        await check_ready()
        return Response('{"ready":true}', media_type=_JSON)

    both = "GET", "HEAD"  # as `wget --spider` checks
    return [
        Route(path, handler, name=handler.__name__, description=text, responses={200: body}, **more)
        for path, handler, text, body, more in (
            ("/health", alive, _ALIVE, _EMPTY, {"methods": both}),
            ("/v2/health/live", server_live, _ALIVE, _flag("live"), {}),
            ("/ready", ready, _IS_READY, _READY, {"methods": both, "statuses": (500, 503)}),
            ("/v2/health/ready", server_ready, _IS_READY, _flag("ready"), {"statuses": (500, 503)}),
            ("/metrics", metrics, "Metrics for Prometheus.", _METRICS, {"statuses": (401,)}),
        )
    ]


FOLDER = Path(__file__).parents[1] / "page"
INDEX = "index.html"
ASSETS = "/ui/{name:path}"
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob: data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",  # no text becomes HTML, by accident either
        "trusted-types 'none'",
    )
)
_HEADERS = {
    "cache-control": "no-cache",  # stored, and asked for again by its ETag
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".jpg": "image/jpeg",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
}
"""Of the files that are served; others in the folder are not."""


@dataclass(frozen=True)
class Asset:
    """One file of the page."""

    content: bytes
    media_type: str
    version: str

    @classmethod
    def of(cls, content: bytes, suffix: str) -> Asset:
        """A file's content, served as its suffix says."""
        version = hashlib.sha256(content).hexdigest()[:32]
        return cls(content, _MEDIA_TYPES[suffix], version)


def read_assets() -> dict[str, Asset]:
    """The files of the page, by their path below its folder."""
    return {
        path.relative_to(FOLDER).as_posix(): Asset.of(path.read_bytes(), path.suffix)
        for path in sorted(FOLDER.rglob("*"))
        if path.suffix in _MEDIA_TYPES
    }


def page_routes(assets: Mapping[str, Asset]) -> list[Route]:
    """`/`, and the other files below `/ui/`."""
    return _asset_routes(("/", ASSETS), assets, INDEX, "the page", CONTENT_SECURITY_POLICY)


def _asset_routes(
    paths: Sequence[str], assets: Mapping[str, Asset], index: str, what: str, policy: str
) -> list[Route]:
    """Routes of files, which the OpenAPI document leaves out.

    Args:
        index: The file of a path that names none.
        what: They are of, for errors.
        policy: Content security policy.
    """

    async def respond(request: Request, service: object) -> Response:
        """A file, or 304 where the browser has it."""
        found = assets.get(request.path_params.get("name", index))
        if found is None:
            raise UnknownRoute(f"no such file of {what}")
        headers = _HEADERS | {"etag": etag(found.version), "content-security-policy": policy}
        if preconditions(request.headers).is_known(found.version):
            return Response(status_code=304, headers=headers)
        return Response(found.content, media_type=found.media_type, headers=headers)

    return [Route(path, respond, methods=("GET", "HEAD"), is_documented=False) for path in paths]


def redirect_route() -> Route:
    """`/` of a gateway without the page: the documentation."""

    async def redirect(request: Request, service: object) -> Response:
        return RedirectResponse("docs")  # relative: a proxy may add a prefix

    return Route("/", redirect, is_documented=False)


DOCS_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",  # Swagger UI writes style attributes
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_SCRIPT, _STYLE, _START = "swagger-ui-bundle.js", "swagger-ui.css", "start.js"
# Addresses are relative: a proxy may add a prefix.
_HTML = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Triptych: API</title>
<link rel="icon" href="ui/icon.svg">
<link rel="stylesheet" href="docs/{_STYLE}">
</head>
<body>
<div id="api"></div>
<script src="docs/{_SCRIPT}"></script>
<script type="module" src="docs/{_START}"></script>
</body>
</html>
"""
# Paths of the document are below the page's folder, whatever prefix a proxy has added.
_STARTING = """\
const response = await fetch("openapi.json");
const spec = { ...(await response.json()), servers: [{ url: new URL(".", location.href).href }] };
SwaggerUIBundle({ spec, dom_id: "#api", deepLinking: true, validatorUrl: null });
"""


def read_docs_assets() -> dict[str, Asset]:
    """The page and its files, by the part of the path after `/docs/`; the page's is empty."""
    installed = files("fastapi_offline") / "static"
    return {
        "": Asset.of(_HTML.encode(), ".html"),
        _START: Asset.of(_STARTING.encode(), ".js"),
        **{
            name: Asset.of((installed / name).read_bytes(), f".{name.rpartition('.')[2]}")
            for name in (_SCRIPT, _STYLE)
        },
    }


def docs_routes() -> list[Route]:
    """`/docs`, and its files below `/docs/`."""
    paths, assets = ("/docs", "/docs/{name}"), read_docs_assets()
    return _asset_routes(paths, assets, "", "the documentation", DOCS_SECURITY_POLICY)
