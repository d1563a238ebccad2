"""Routes of the gateway itself, for operators and probes; the latter need no key."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from inference.errors import Unavailable
from serving.gateway.http.dialect import Route
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
        Route(path, use, name=use.__name__, description=text, responses={200: body}, **fields)
        for path, use, text, body, fields in (
            ("/health", alive, _ALIVE, _EMPTY, {"methods": both}),
            ("/v2/health/live", server_live, _ALIVE, _flag("live"), {}),
            ("/ready", ready, _IS_READY, _READY, {"methods": both, "statuses": (500, 503)}),
            ("/v2/health/ready", server_ready, _IS_READY, _flag("ready"), {"statuses": (500, 503)}),
            ("/metrics", metrics, "Metrics for Prometheus.", _METRICS, {"statuses": (401,)}),
        )
    ]
