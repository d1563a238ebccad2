"""The same tasks over gRPC (`triptych.v1`), with health and reflection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from pydantic import BaseModel

from serving.errors import InvalidRequest
from serving.gateway.grpc_call import NAME, GrpcCall
from serving.gateway.health import Readiness
from serving.gateway.service import Service
from serving.gateway.streams import PieceStream
from serving.ports import listening
from serving.tasks.picture import Picture
from triptych.conversion import from_proto, to_proto
from triptych.tasks.caption import CaptionRequest
from triptych.tasks.generate import GenerateRequest
from triptych.tasks.translate import TranslateRequest
from triptych.tasks.zero_shot import ZeroShotRequest
from triptych.triptych_pb2_grpc import TriptychServicer, add_TriptychServicer_to_server

M = TypeVar("M", bound=BaseModel)

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
            message = _whole(from_proto(request, TranslateRequest))
            return (await self._service.translate(message)).response

        return await self._answer("Translate", work, context)

    async def TranslateStream(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """The same, piece by piece."""

        def begin() -> PieceStream:
            message = from_proto(request, TranslateRequest)
            return self._service.translate_stream(message)

        async with aclosing(self._pieces("TranslateStream", begin, context)) as pieces:
            async for piece in pieces:
                yield piece

    async def Caption(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Pictures in words."""

        async def work() -> BaseModel:
            pictures = _taken(request)
            message = _whole(from_proto(request, CaptionRequest))
            return (await self._service.caption(message, pictures)).response

        return await self._answer("Caption", work, context)

    async def CaptionStream(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """The same, piece by piece."""

        def begin() -> PieceStream:
            pictures = _taken(request)
            message = from_proto(request, CaptionRequest)
            return self._service.caption_stream(message, pictures)

        async with aclosing(self._pieces("CaptionStream", begin, context)) as pieces:
            async for piece in pieces:
                yield piece

    async def Generate(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Prompts continued."""

        async def work() -> BaseModel:
            message = _whole(from_proto(request, GenerateRequest))
            return (await self._service.generate(message)).response

        return await self._answer("Generate", work, context)

    async def GenerateStream(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """The same, piece by piece."""

        def begin() -> PieceStream:
            message = from_proto(request, GenerateRequest)
            return self._service.generate_stream(message)

        async with aclosing(self._pieces("GenerateStream", begin, context)) as pieces:
            async for piece in pieces:
                yield piece

    async def ZeroShot(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Pictures among labels."""

        async def work() -> BaseModel:
            pictures = _taken(request)
            message = from_proto(request, ZeroShotRequest)
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
        async with GrpcCall(method, context, self._service) as call:
            call.response = await self._service.in_pool(None, to_proto, await work())
        await call.end()
        return call.response

    async def _pieces(
        self, method: str, begin: Callable[[], PieceStream], context: Any
    ) -> AsyncGenerator[Any, None]:
        """A stream's pieces as protobuf; it ends with the error's status where it fails."""
        async with GrpcCall(method, context, self._service) as call:
            stream = begin()
            try:
                async for pieces in stream.batches():
                    for piece in pieces:
                        yield to_proto(piece)
            finally:
                await stream.close()
        await call.end()


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
