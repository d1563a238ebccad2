"""The same tasks over gRPC (`triptych.v1`), with health and reflection."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from pydantic import BaseModel, ValidationError

from serving.errors import InternalError, InvalidRequest, TriptychError
from serving.gateway.edge import CANCELLED, request_id
from serving.gateway.errors import from_validation
from serving.gateway.health import Readiness
from serving.gateway.ports import listening
from serving.gateway.routes import check_key
from serving.gateway.service import Service
from serving.gateway.streams import PieceStream
from serving.tasks.picture import Picture
from triptych import messages
from triptych import triptych_pb2 as pb
from triptych.conversion import from_proto, to_proto
from triptych.triptych_pb2_grpc import TriptychServicer, add_TriptychServicer_to_server

log = logging.getLogger(__name__)

M = TypeVar("M", bound=BaseModel)

NAME = pb.DESCRIPTOR.services_by_name["Triptych"].full_name
WATCH_INTERVAL_S = 2.0


def create_grpc_server(service: Service, readiness: Readiness) -> tuple[grpc.aio.Server, int]:
    """A server that is not started yet, and the port that it will listen on.

    Raises:
        SetupError: the port is taken.
    """
    settings = service.settings
    server = grpc.aio.server(
        options=(
            ("grpc.max_receive_message_length", settings.payload_limit),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),  # else a second gateway would share the port in silence
        )
    )
    add_TriptychServicer_to_server(GrpcTasks(service), server)  # type: ignore[no-untyped-call]
    health_pb2_grpc.add_HealthServicer_to_server(GrpcHealth(readiness), server)
    names = (NAME, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name)
    reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), server)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    # gRPC takes no socket of ours, and logs more than one line about a port in use.
    listening(settings.host, settings.grpc_port, "gRPC").close()
    return server, server.add_insecure_port(f"{host}:{settings.grpc_port}")


class GrpcTasks(TriptychServicer):
    """One method a task; the names are the proto's."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def Translate(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Texts in another language."""

        async def work() -> BaseModel:
            message = _whole(from_proto(request, messages.TranslateRequest))
            return (await self._service.translate(message)).response

        return await self._answer("Translate", work, context)

    async def TranslateStream(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """The same, piece by piece."""

        def begin() -> PieceStream:
            message = from_proto(request, messages.TranslateRequest)
            return self._service.translate_stream(message)

        async with aclosing(self._pieces("TranslateStream", begin, context)) as pieces:
            async for piece in pieces:
                yield piece

    async def Caption(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Pictures in words."""

        async def work() -> BaseModel:
            pictures = _taken(request)
            message = _whole(from_proto(request, messages.CaptionRequest))
            return (await self._service.caption(message, pictures)).response

        return await self._answer("Caption", work, context)

    async def CaptionStream(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """The same, piece by piece."""

        def begin() -> PieceStream:
            pictures = _taken(request)
            message = from_proto(request, messages.CaptionRequest)
            return self._service.caption_stream(message, pictures)

        async with aclosing(self._pieces("CaptionStream", begin, context)) as pieces:
            async for piece in pieces:
                yield piece

    async def Generate(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Prompts continued."""

        async def work() -> BaseModel:
            message = _whole(from_proto(request, messages.GenerateRequest))
            return (await self._service.generate(message)).response

        return await self._answer("Generate", work, context)

    async def GenerateStream(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """The same, piece by piece."""

        def begin() -> PieceStream:
            message = from_proto(request, messages.GenerateRequest)
            return self._service.generate_stream(message)

        async with aclosing(self._pieces("GenerateStream", begin, context)) as pieces:
            async for piece in pieces:
                yield piece

    async def ZeroShot(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Pictures among labels."""

        async def work() -> BaseModel:
            pictures = _taken(request)
            message = from_proto(request, messages.ZeroShotRequest)
            return (await self._service.zero_shot(message, pictures)).response

        return await self._answer("ZeroShot", work, context)

    async def ListModels(self, request: Any, context: Any) -> Any:  # noqa: N802
        """What is served."""

        async def work() -> BaseModel:
            return self._service.models()

        return await self._answer("ListModels", work, context)

    async def _answer(
        self, method: str, work: Callable[[], Awaitable[BaseModel]], context: Any
    ) -> Any:
        """The work's response as protobuf, or the call ended with the error's status."""
        async with _Call(method, context, self._service) as call:
            call.response = await self._service.in_pool(to_proto, await work())
        await call.end()
        return call.response

    async def _pieces(
        self, method: str, begin: Callable[[], PieceStream], context: Any
    ) -> AsyncGenerator[Any, None]:
        """A stream's pieces as protobuf; it ends with the error's status where it fails."""
        async with _Call(method, context, self._service) as call:
            stream = begin()
            try:
                async for pieces in stream.batches():
                    for piece in pieces:
                        yield to_proto(piece)
            finally:
                await stream.close()
        await call.end()


class _Call:
    """One call's id, key, log line and end."""

    def __init__(self, method: str, context: Any, service: Service) -> None:
        self.response: Any = None
        self._method = method
        self._context = context
        self._service = service
        self._metadata = dict(context.invocation_metadata() or ())
        self._id = request_id(self._metadata.get("x-request-id"))
        self._started_s = time.perf_counter()
        self._error: TriptychError | None = None

    async def __aenter__(self) -> _Call:
        try:
            check_key(self._metadata.get("authorization"), self._service)
        except TriptychError as error:
            self._record(error.wire)
            self._error = error
            await self.end()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, _: object
    ) -> bool:
        """Record the call; its error is kept for `end`."""
        if isinstance(raised, Exception):
            self._error = _as_ours(raised, self._id)
        if self._error is not None:
            self._record(self._error.wire)
        else:
            self._record(CANCELLED if raised is not None else None)
        return self._error is not None

    async def end(self) -> None:
        """Send the trailing metadata; with an error, its status (which raises)."""
        trailing: list[tuple[str, str | bytes]] = [("x-request-id", self._id)]
        if self._error is None:
            self._context.set_trailing_metadata(trailing)
        else:
            await _abort(self._context, self._error, trailing)

    def _record(self, failure: str | None) -> None:
        duration_s = time.perf_counter() - self._started_s
        self._service.metrics.answered(f"/{NAME}/{self._method}", duration_s, failure)
        fields = {"request_id": self._id, "route": self._method, "error": failure}
        log.info("answered", extra={**fields, "duration_ms": round(duration_s * 1000, 1)})


class GrpcHealth(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """`grpc.health.v1` over the same readiness as `/ready`."""

    def __init__(self, readiness: Readiness) -> None:
        self._readiness = readiness

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Whether every model answers."""
        if request.service not in ("", NAME):
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no such service; served is {NAME}")
        return await self._status()

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """The same, now and whenever it changes."""
        last = None
        while True:
            status = await self._status()
            if status != last:
                yield status
            last = status
            await asyncio.sleep(WATCH_INTERVAL_S)

    async def _status(self) -> Any:
        status = health_pb2.HealthCheckResponse
        is_ready = await self._readiness.problem() is None
        return status(status=status.SERVING if is_ready else status.NOT_SERVING)


def _whole(message: M) -> M:
    """A request whose answer is one message.

    Raises:
        InvalidRequest: it asks for a stream.
    """
    if getattr(message, "stream", None):
        raise InvalidRequest("this method does not stream: call its twin …Stream", field="stream")
    return message


def _taken(request: Any) -> list[Picture]:
    """The request's pictures as bytes; empty ones stay in their place, cheap to convert."""
    pictures = list(request.images)
    del request.images[:]
    request.images.extend(b"" for _ in pictures)
    return pictures


def _as_ours(error: Exception, call_id: str) -> TriptychError:
    if isinstance(error, TriptychError):
        return error
    if isinstance(error, ValidationError):
        return from_validation(error)
    log.error("bug request_id=%s", call_id, exc_info=error)
    return InternalError("the gateway failed: its log has the cause under this id")


async def _abort(context: Any, error: TriptychError, trailing: list[tuple[str, Any]]) -> None:
    body = messages.ErrorBody(type=error.wire, message=error.message, field=error.field)
    trailing.append(("triptych-error-bin", to_proto(body).SerializeToString()))
    if error.retry_after_s is not None:
        trailing.append(("retry-after", str(math.ceil(error.retry_after_s))))
    status = grpc.StatusCode[error.grpc_status]
    await context.abort(status, error.message, trailing_metadata=tuple(trailing))
