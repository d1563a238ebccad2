"""Routes of the gateway itself, for operators and probes; the latter need no key."""

from __future__ import annotations

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST

from inference.errors import Unavailable
from serving.gateway.http.openapi import SECURITY, errors
from serving.gateway.requests.health import Readiness
from serving.gateway.requests.service import Service

_JSON = "application/json"
_EMPTY: dict[str, object] = {
    "description": "Yes.",
    "content": {"application/json": {"schema": {"type": "object", "maxProperties": 0}}},
}


_READY: dict[str, object] = {
    "description": "Yes; `self_check` is there where models are not checked when they are loaded.",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "properties": {"self_check": {"const": "off"}},
                "additionalProperties": False,
            }
        }
    },
}


def _flag(name: str) -> dict[str, object]:
    """The response of a probe of the Open Inference Protocol, whose clients read the field."""
    schema = {"type": "object", "properties": {name: {"type": "boolean"}}, "required": [name]}
    return {"description": "Yes.", "content": {"application/json": {"schema": schema}}}


_METRICS: dict[str, object] = {
    "description": "Prometheus' text format.",
    "content": {CONTENT_TYPE_LATEST: {"schema": {"type": "string"}}},
}


def system_routes(service: Service, readiness: Readiness) -> APIRouter:
    """Liveness, readiness and metrics."""
    router = APIRouter()

    async def alive() -> Response:
        """The process responds."""
        return Response("{}", media_type=_JSON)

    async def ready() -> Response:
        """Every model responds, and the gateway is not shutting down; otherwise 503 and why."""
        problem = await readiness.problem()
        if problem:
            raise Unavailable(f"not ready: {problem}", retry_after_s=1)
        is_checked = service.catalog.record.self_check
        return Response("{}" if is_checked else '{"self_check":"off"}', media_type=_JSON)

    async def metrics() -> Response:
        """Metrics for Prometheus."""
        return Response(service.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)

    async def server_live() -> Response:
        """The process responds."""
        return Response('{"live":true}', media_type=_JSON)

    async def server_ready() -> Response:
        """Every model responds, and the gateway is not shutting down; otherwise 503 and why."""
        await ready()
        return Response('{"ready":true}', media_type=_JSON)

    for path, endpoint, body, statuses in (
        ("/health", alive, _EMPTY, ()),
        ("/v2/health/live", server_live, _flag("live"), ()),
        ("/ready", ready, _READY, (500, 503)),
        ("/v2/health/ready", server_ready, _flag("ready"), (500, 503)),
    ):
        router.add_api_route(
            path,
            endpoint,
            methods=["GET"],
            response_class=Response,
            responses={200: body, **errors(*statuses)},
        )
    keyed = service.keys.are_required
    router.add_api_route(
        "/metrics",
        metrics,
        methods=["GET"],
        response_class=Response,
        responses={200: _METRICS, **(errors(401) if keyed else {})},
        openapi_extra=SECURITY if keyed else None,
    )
    for path, endpoint in (("/health", alive), ("/ready", ready)):  # as `wget --spider` checks
        router.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False)
    return router
