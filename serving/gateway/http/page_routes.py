"""The page at `/`: static files, read once, served without a key because they contain no data.

The page is a client of the HTTP API like any other: it learns from `/v1/models` what is served.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from inference.errors import UnknownRoute
from serving.gateway.http.dialect import Route, Use
from serving.gateway.http.preconditions import etag, preconditions

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
    "content-security-policy": CONTENT_SECURITY_POLICY,
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

    async def respond(request: Request, service: object) -> Response:
        found = assets.get(request.path_params.get("name", INDEX))
        if found is None:
            raise UnknownRoute("no such file of the page")
        return respond_with_asset(found, request)

    return [asset_route(path, respond) for path in ("/", ASSETS)]


def asset_route(path: str, use: Use) -> Route:
    """A route of files, which the OpenAPI document leaves out."""
    return Route(path, use, methods=("GET", "HEAD"), is_documented=False)


def redirect_route() -> Route:
    """`/` of a gateway without the page: the documentation."""

    async def redirect(request: Request, service: object) -> Response:
        return RedirectResponse("docs")  # relative: a proxy may add a prefix

    return Route("/", redirect, is_documented=False)


def respond_with_asset(
    asset: Asset, request: Request, policy: str = CONTENT_SECURITY_POLICY
) -> Response:
    """A file, or 304 where the browser has it.

    Args:
        request: May name the version that the browser has.
        policy: Content security policy of the page that the file belongs to.
    """
    headers = _HEADERS | {"etag": etag(asset.version), "content-security-policy": policy}
    if preconditions(request.headers).is_known(asset.version):
        return Response(status_code=304, headers=headers)
    return Response(asset.content, media_type=asset.media_type, headers=headers)
