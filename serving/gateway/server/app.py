"""The HTTP application, assembled from a service and its dialects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import BaseModel
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from inference.tasks import TASKS
from serving.gateway.dialects import huggingface, libretranslate, open_inference, openai
from serving.gateway.dialects.huggingface.tgi_tei_routes import TEI_PATHS, TGI_PATHS
from serving.gateway.dialects.libretranslate.downloads import DownloadStore
from serving.gateway.dialects.native import NativeDialect
from serving.gateway.http.middleware import KeyGate, Middleware, OriginGate, is_guarded
from serving.gateway.http.openapi import openapi_route
from serving.gateway.http.router import ErrorRenderer, Route, Router, Routes
from serving.gateway.http.routes import (
    docs_routes,
    page_routes,
    read_assets,
    redirect_route,
    system_routes,
)
from serving.gateway.requests.health import Readiness
from serving.gateway.requests.service import Service
from serving.settings.gateway_settings import DialectName
from triptych.glossaries.messages import GlossaryUpload

_MESSAGES: tuple[type[BaseModel], ...] = (
    *(task.declaration.request for task in TASKS.values()),
    GlossaryUpload,
    *openai.MESSAGES,
    *huggingface.MESSAGES,
    *libretranslate.MESSAGES,
    *open_inference.MESSAGES,
)


def create_app(
    service: Service,
    readiness: Readiness,
    further_dialects: Sequence[Routes] = (),
    downloads: DownloadStore | None = None,
) -> Middleware:
    """The application; it neither starts nor stops what it is given.

    Args:
        service: Serves the tasks.
        readiness: The check behind `/ready`.
        further_dialects: HTTP APIs beside Triptych's own and those of other services.
        downloads: Keeps translated files; by default in memory.
    """
    settings, keys = service.settings, service.keys
    native = NativeDialect(keys)
    others: dict[DialectName, Sequence[Routes]] = {
        "openai": openai.dialects(keys),
        "huggingface": huggingface.dialects(keys),
        "tgi": [path(keys) for path in TGI_PATHS],
        "tei": [path(keys) for path in TEI_PATHS],
        "libretranslate": libretranslate.dialects(keys, downloads),
        "openinference": open_inference.dialects(keys),
    }
    dialects: list[Routes] = [
        native,
        *(one for name, found in others.items() if name in settings.dialects for one in found),
        *further_dialects,
    ]
    routes = [(dialect, route) for dialect in dialects for route in dialect.routes()]
    owners = {route.path: dialect for dialect, route in routes}
    routes += [(native, route) for route in _own_routes(readiness, has_page=settings.page)]
    has_origin_gate = is_guarded(settings, has_keys=keys.are_required)
    document = openapi_route(
        [(owner.error, route) for owner, route in routes],
        _MESSAGES,
        has_key=keys.are_required,
        has_origin_gate=has_origin_gate,
    )
    render_error = ErrorRenderer(owners, native)
    app: ASGIApp = Router([document, *(route for _, route in routes)], service, render_error)
    if keys.are_required:
        app = KeyGate(app, keys, owners, render_error)
    if settings.cors_allow_origin:
        app = CORSMiddleware(
            app,
            allow_origins=settings.cors_allow_origin,
            allow_methods=["GET", "POST", "PUT", "DELETE"],
            allow_headers=["*"],
            expose_headers=["etag"],
        )
    if has_origin_gate:
        app = OriginGate(app, settings, render_error)
    return Middleware(
        app,
        service.metrics,
        settings.payload_limit,
        service.admission.body,
        render_error,
        service.tracer,
    )


def _own_routes(readiness: Readiness, *, has_page: bool) -> Iterator[Route]:
    """Those of no dialect."""
    yield from system_routes(readiness)
    yield from docs_routes()
    yield from page_routes(read_assets()) if has_page else (redirect_route(),)
