"""The HTTP paths; what they do is in `service` and `health`."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable
from typing import Any, TypeVar

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel

from serving.errors import Unauthorized, Unavailable
from serving.gateway.body import read_message, read_upload, schema
from serving.gateway.health import Readiness
from serving.gateway.leaving import unless_left
from serving.gateway.plans import Answer
from serving.gateway.server_events import ServerEvents
from serving.gateway.service import Service
from serving.gateway.streams import PieceStream
from triptych.messages import ErrorResponse, ModelList
from triptych.tasks.caption import CaptionRequest, CaptionResponse
from triptych.tasks.generate import GenerateRequest, GenerateResponse
from triptych.tasks.translate import TranslateRequest, TranslateResponse
from triptych.tasks.zero_shot import ZeroShotRequest, ZeroShotResponse

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
        if message.stream:
            return await _streamed(request, service.translate_stream(message))
        return _answered(await _unless_left(request, service.translate(message)))

    @router.post(
        "/caption",
        response_model=CaptionResponse,
        openapi_extra=schema(CaptionRequest, with_files=True),
    )
    async def caption(request: Request) -> Response:
        """Pictures in words."""
        upload = await read_upload(request, CaptionRequest, service)
        if upload.message.stream:
            stream = service.caption_stream(upload.message, upload.pictures)
            return await _streamed(request, stream)
        work = service.caption(upload.message, upload.pictures)
        return _answered(await _unless_left(request, work))

    @router.post(
        "/generate", response_model=GenerateResponse, openapi_extra=schema(GenerateRequest)
    )
    async def generate(request: Request) -> Response:
        """Prompts continued, below an instruction and examples if you like."""
        message = await read_message(request, GenerateRequest, service)
        if message.stream:
            return await _streamed(request, service.generate_stream(message))
        return _answered(await _unless_left(request, service.generate(message)))

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
    return await unless_left(request.receive, work)


async def _streamed(request: Request, stream: PieceStream) -> Response:
    """The stream as the answer, once its first piece is there: what fails before has a status."""
    try:
        await _unless_left(request, stream.begun())
    except BaseException:
        await stream.close()
        raise
    return ServerEvents(stream)


def _answered(answer: Answer[Any]) -> Response:
    response = _json(answer.response)
    response.headers.update(answer.timings.headers)
    return response


def _json(message: BaseModel) -> Response:
    return Response(message.model_dump_json(exclude_none=True), media_type="application/json")
