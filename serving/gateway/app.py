"""The HTTP application, put together from a service."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from serving.gateway.edge import Edge
from serving.gateway.errors import install_handlers
from serving.gateway.health import Readiness
from serving.gateway.routes import house_routes, task_routes
from serving.gateway.service import Service

TITLE = "Triptych"
SUMMARY = "Translation, captions, generation and zero-shot labels from exported ONNX graphs."


def create_app(service: Service, readiness: Readiness) -> FastAPI:
    """The application; it neither starts nor stops what it is given."""
    app = FastAPI(title=TITLE, summary=SUMMARY, redoc_url=None, redirect_slashes=False)
    app.include_router(task_routes(service))
    app.include_router(house_routes(service, readiness))
    install_handlers(app)
    settings = service.settings
    if settings.cors_allow_origin:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_allow_origin),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
        )
    app.add_middleware(Edge, metrics=service.metrics, payload_limit=settings.payload_limit)
    return app
