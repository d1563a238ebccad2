"""The HTTP application, assembled from a service and its dialects."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from inference.tasks import TASKS
from serving.gateway.dialects import huggingface, libretranslate, openai
from serving.gateway.dialects.huggingface.tgi_tei_routes import TEI_PATHS, TGI_PATHS
from serving.gateway.dialects.libretranslate.downloads import DownloadStore
from serving.gateway.dialects.native import NativeDialect
from serving.gateway.dialects.open_inference.dialect import OpenInferenceDialect
from serving.gateway.dialects.open_inference.tensors import InferBody
from serving.gateway.http.middleware import KeyGate, Middleware, OriginGate, is_guarded
from serving.gateway.http.openapi import openapi_route
from serving.gateway.http.router import ErrorRenderer, Router, RouteTable
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
    *(route.body for route in openai.ROUTES),
    *huggingface.MESSAGES,
    *libretranslate.MESSAGES,
    InferBody,
)


def create_app(
    service: Service,
    readiness: Readiness,
    further_dialects: Sequence[RouteTable] = (),
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
    others: dict[DialectName, Sequence[RouteTable]] = {
        "openai": [route(keys) for route in openai.ROUTES],
        "huggingface": huggingface.dialects(keys),
        "tgi": [path(keys) for path in TGI_PATHS],
        "tei": [path(keys) for path in TEI_PATHS],
        "libretranslate": libretranslate.dialects(keys, downloads),
        "openinference": [OpenInferenceDialect(keys)],
    }
    dialects: list[RouteTable] = [
        native,
        *(one for name, found in others.items() if name in settings.dialects for one in found),
        *further_dialects,
    ]
    routes = [(dialect, route) for dialect in dialects for route in dialect.routes()]
    owners = {route.path: dialect for dialect, route in routes}
    pages = page_routes(read_assets()) if settings.page else [redirect_route()]
    of_no_dialect = [*system_routes(readiness), *docs_routes(), *pages]
    routes += [(native, route) for route in of_no_dialect]
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
