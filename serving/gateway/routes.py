"""The HTTP paths; what they do is in `service` and `health`."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable
from typing import Any, TypeVar

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.requests import ClientDisconnect

from serving.errors import Unauthorized, Unavailable
from serving.gateway.body import read_message, read_upload, schema
from serving.gateway.health import Readiness
from serving.gateway.service import Answer, Service
from triptych.messages import (
    CaptionRequest,
    CaptionResponse,
    ErrorResponse,
    ModelList,
    TranslateRequest,
    TranslateResponse,
    ZeroShotRequest,
    ZeroShotResponse,
)

T = TypeVar("T")
R = TypeVar("R", bound=BaseModel)

_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorResponse}
    for status in (400, 401, 404, 413, 415, 422, 429, 500, 503, 504)
}


def task_routes(service: Service) -> APIRouter:
    """Everything below /v1, behind the key where there is one."""
    router = APIRouter(prefix="/v1", dependencies=[Depends(_key_check(service))], responses=_ERRORS)

    @router.post(
        "/translate", response_model=TranslateResponse, openapi_extra=schema(TranslateRequest)
    )
    async def translate(request: Request) -> Response:
        """Texts in another language; paragraphs keep their line breaks."""
        message = await read_message(request, TranslateRequest, service)
        return _answered(await _unless_left(request, service.translate(message)))

    @router.post(
        "/caption",
        response_model=CaptionResponse,
        openapi_extra=schema(CaptionRequest, with_files=True),
    )
    async def caption(request: Request) -> Response:
        """Pictures in words."""
        upload = await read_upload(request, CaptionRequest, service)
        work = service.caption(upload.message, upload.pictures)
        return _answered(await _unless_left(request, work))

    @router.post(
        "/zero-shot",
        response_model=ZeroShotResponse,
        openapi_extra=schema(ZeroShotRequest, with_files=True),
    )
    async def zero_shot(request: Request) -> Response:
        """Pictures among labels of your own, best first."""
        upload = await read_upload(request, ZeroShotRequest, service)
        work = service.zero_shot(upload.message, upload.pictures)
        return _answered(await _unless_left(request, work))

    @router.get("/models", response_model=ModelList)
    async def models() -> Response:
        """What is served, with its limits."""
        return _json(service.models())

    return router


def house_routes(service: Service, readiness: Readiness) -> APIRouter:
    """What operators and probes ask; no key."""
    router = APIRouter()

    async def alive() -> Response:
        """The process answers."""
        return Response("{}", media_type="application/json")

    async def ready() -> Response:
        """Every model answers, and the gateway is not shutting down; else 503 says why."""
        problem = await readiness.problem()
        if problem:
            raise Unavailable(f"not ready: {problem}", retry_after_s=1)
        return Response("{}", media_type="application/json")

    async def metrics() -> Response:
        """For Prometheus."""
        return Response(service.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)

    async def root() -> Response:
        """To the documentation."""
        return RedirectResponse("/docs")

    for path in ("/health", "/v2/health/live"):
        router.add_api_route(path, alive, methods=["GET"])
    for path in ("/ready", "/v2/health/ready"):
        router.add_api_route(path, ready, methods=["GET"])
    router.add_api_route("/metrics", metrics, methods=["GET"])
    router.add_api_route("/", root, methods=["GET"], include_in_schema=False)
    return router


def check_key(authorization: str | None, service: Service) -> None:
    """Compare `Bearer KEY` with the gateway's key, if it has one, in constant time.

    Raises:
        Unauthorized: no key, or another.
    """
    key = service.settings.api_key
    if key is None:
        return
    scheme, _, given = (authorization or "").partition(" ")
    is_right = hmac.compare_digest(given.strip().encode(), key.get_secret_value().encode())
    if scheme.lower() != "bearer" or not is_right:
        raise Unauthorized("no key, or the wrong one: send Authorization: Bearer KEY")


def _key_check(service: Service) -> Any:
    async def checked(request: Request) -> None:
        check_key(request.headers.get("authorization"), service)

    return checked


async def _unless_left(request: Request, work: Awaitable[T]) -> T:
    """The work's result; cancelled when the client leaves, so that slots are freed.

    Raises:
        ClientDisconnect: the client left.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        leaving.cancel()
        working.cancel()
        await asyncio.gather(leaving, working, return_exceptions=True)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _answered(answer: Answer[Any]) -> Response:
    timings = answer.timings
    response = _json(answer.response)
    response.headers["x-tokenization-time"] = _milliseconds(timings.tokenization_s)
    response.headers["x-queue-time"] = _milliseconds(timings.queue_s)
    response.headers["x-inference-time"] = _milliseconds(timings.inference_s)
    return response


def _json(message: BaseModel) -> Response:
    return Response(message.model_dump_json(exclude_none=True), media_type="application/json")


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f}"
