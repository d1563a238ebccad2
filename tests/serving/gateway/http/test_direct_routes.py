"""POST routes of dialects are called without FastAPI's routing; nothing else changes."""

import pytest
from fastapi import APIRouter, HTTPException, Request, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from inference.tasks import TASKS
from serving.gateway.dialects.native import NativeDialect
from serving.gateway.http.handle_request import DirectRoutes
from serving.gateway.requests.service import Service
from serving.gateway.server.app import create_app
from tests.serving.gateway.conftest import Gateway, http_client


class _Refusing(NativeDialect):
    """A dialect whose only route raises what Starlette would."""

    def router(self, service: Service) -> APIRouter:
        async def refuse(request: Request) -> Response:
            raise HTTPException(405, headers={"allow": "POST", "x-reason": "none"})

        router = APIRouter()
        router.add_api_route("/refused", refuse, methods=["POST"])
        return router


async def test_no_task_passes_fastapis_routing(gateway: Gateway, monkeypatch) -> None:
    passed: list[str] = []
    router = gateway.app.router
    original: ASGIApp = type(router).__call__

    async def routed(self: object, scope: Scope, receive: Receive, send: Send) -> None:
        passed.append(scope["path"])
        await original(self, scope, receive, send)

    monkeypatch.setattr(type(router), "__call__", routed)
    for task in TASKS.values():
        response = await gateway.http.post(task.declaration.path, json={})
        assert response.status_code in (404, 422), task.name
        assert response.json()["error"]["type"]
    assert passed == []
    assert (await gateway.http.get("/health")).status_code == 200
    assert (await gateway.http.get("/v1/translate")).status_code == 405
    assert passed == ["/health", "/v1/translate"]


async def test_route_and_failure_are_recorded(gateway: Gateway) -> None:
    await gateway.http.post("/v1/generate", json={})
    text = (await gateway.http.get("/metrics")).text
    assert 'triptych_request_count_total{route="/v1/generate"} 1.0' in text
    assert 'route="/v1/generate",type="invalid_request"' in text


async def test_a_refusal_keeps_its_headers(gateway: Gateway) -> None:
    app = create_app(gateway.service, gateway.readiness, [_Refusing(None)])
    async with http_client(app) as http:
        response = await http.post("/refused")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert response.headers["x-reason"] == "none"


async def test_a_bug_is_left_to_the_middleware(gateway: Gateway) -> None:
    gateway.inference.failures["tiny-generate"] = ZeroDivisionError("secret")
    response = await gateway.http.post("/v1/generate", json={"prompts": ["a"]})
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "internal"
    assert "secret" not in response.text


@pytest.mark.parametrize("kind", ["lifespan", "websocket"])
async def test_other_protocols_reach_the_application(kind: str) -> None:
    seen: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)

    routes = DirectRoutes(app, [], None)
    await routes({"type": kind}, None, None)
    assert seen == [{"type": kind}]
