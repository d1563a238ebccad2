"""The HTTP application, assembled from a service and its dialects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from inference.tasks import TASKS
from serving.gateway.dialects import huggingface, libretranslate, open_inference, openai
from serving.gateway.dialects.huggingface.tgi_tei_routes import TEI_PATHS, TGI_PATHS
from serving.gateway.dialects.libretranslate.downloads import DownloadStore
from serving.gateway.dialects.native import NativeDialect
from serving.gateway.http import openapi
from serving.gateway.http.api_docs import docs_routes
from serving.gateway.http.dialect import Routes
from serving.gateway.http.gates import KeyGate, OriginGate, is_guarded
from serving.gateway.http.handle_request import DirectRoutes
from serving.gateway.http.http_errors import ErrorRenderer
from serving.gateway.http.middleware import Middleware
from serving.gateway.http.page_routes import page_routes, read_assets, redirect_routes
from serving.gateway.http.routes import system_routes
from serving.gateway.requests.health import Readiness
from serving.gateway.requests.service import Service
from serving.settings.gateway_settings import DialectName
from triptych import __version__
from triptych.glossaries.messages import GlossaryUpload

TITLE = "Triptych"
SUMMARY = "Vision-and-language models exported to ONNX, served by Triton."


class Application(FastAPI):
    """FastAPI from the first of our layers on.

    Its own, around them, would handle bugs, bound bodies and trace a second time.
    """

    __call__ = Starlette.__call__

    def build_middleware_stack(self) -> ASGIApp:
        """The layers, `Middleware` outermost."""
        stack: Any = super().build_middleware_stack()
        while not isinstance(stack, Middleware):
            stack = stack.app
        return stack


def create_app(
    service: Service,
    readiness: Readiness,
    further_dialects: Sequence[Routes] = (),
    downloads: DownloadStore | None = None,
) -> FastAPI:
    """The application; it neither starts nor stops what it is given.

    Args:
        service: Serves the tasks.
        readiness: The check behind `/ready`.
        further_dialects: HTTP APIs beside Triptych's own and those of other services.
        downloads: Keeps translated files; by default in memory.
    """
    app = Application(
        title=TITLE,
        summary=SUMMARY,
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    settings = service.settings
    native = NativeDialect(service.keys)
    owners: dict[str, Routes] = {}
    routes: list[BaseRoute] = []
    others: dict[DialectName, Sequence[Routes]] = {
        "openai": openai.dialects(service.keys),
        "huggingface": huggingface.dialects(service.keys),
        "tgi": [path(service.keys) for path in TGI_PATHS],
        "tei": [path(service.keys) for path in TEI_PATHS],
        "libretranslate": libretranslate.dialects(service.keys, downloads),
        "openinference": open_inference.dialects(service.keys),
    }
    dialects: list[Routes] = [
        native,
        *(one for name, found in others.items() if name in settings.dialects for one in found),
        *further_dialects,
    ]
    for dialect in dialects:
        router = dialect.router(service)
        owners |= {getattr(route, "path", ""): dialect for route in router.routes}
        routes += router.routes
        app.include_router(router)
    own = [
        *(system_routes(service, readiness), docs_routes()),
        page_routes(read_assets()) if settings.page else redirect_routes(),
    ]
    for router in own:
        app.include_router(router)
    every = [*routes, *(route for router in own for route in router.routes)]
    render_error = ErrorRenderer(owners, native, every)
    render_error.install(app)
    declared = [task.declaration for task in TASKS.values()]
    messages: tuple[type[BaseModel], ...] = (
        GlossaryUpload,
        *openai.MESSAGES,
        *huggingface.MESSAGES,
        *libretranslate.MESSAGES,
        *open_inference.MESSAGES,
    )
    has_keys = service.keys.are_required
    has_origin_gate = is_guarded(settings, has_keys=has_keys)
    openapi.install(app, declared, messages, has_key=has_keys, has_origin_gate=has_origin_gate)
    app.add_middleware(DirectRoutes, routes=routes, render_error=render_error)  # the innermost
    if has_keys:
        app.add_middleware(KeyGate, keys=service.keys, dialects=routes, render_error=render_error)
    if settings.cors_allow_origin:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_allow_origin),
            allow_methods=["GET", "POST", "PUT", "DELETE"],
            allow_headers=["*"],
            expose_headers=["etag"],
        )
    if has_origin_gate:
        app.add_middleware(OriginGate, settings=settings, render_error=render_error)
    app.add_middleware(
        Middleware,
        metrics=service.metrics,
        payload_limit=settings.payload_limit,
        body=service.admission.body,
        render_error=render_error,
        tracer=service.tracer,
    )
    return app
