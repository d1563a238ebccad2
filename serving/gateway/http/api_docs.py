"""`/docs`: Swagger UI over our OpenAPI document, from files of this machine alone.

FastAPI's own page loads its scripts from another host: a closed network cannot reach it, and it
decides what runs in the browser of an operator who enters a key there. The files of Swagger UI are
those of the package `fastapi-offline`; the page around them is ours.
"""

from __future__ import annotations

from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

from inference.errors import UnknownRoute
from serving.gateway.http.dialect import Route
from serving.gateway.http.page_routes import Asset, asset_route, respond_with_asset

CONTENT_SECURITY_POLICY = "; ".join(
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
    assets = read_docs_assets()

    async def respond(request: Request, service: object) -> Response:
        found = assets.get(request.path_params.get("name", ""))
        if found is None:
            raise UnknownRoute("no such file of the documentation")
        return respond_with_asset(found, request, CONTENT_SECURITY_POLICY)

    return [asset_route(path, respond) for path in ("/docs", "/docs/{name}")]
