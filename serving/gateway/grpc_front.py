"""The same tasks over gRPC (`triptych.v1`), with health and reflection."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from pydantic import BaseModel, ValidationError

from serving.errors import InternalError, TriptychError
from serving.gateway.edge import CANCELLED, request_id
from serving.gateway.errors import from_validation
from serving.gateway.health import Readiness
from serving.gateway.ports import listening
from serving.gateway.routes import check_key
from serving.gateway.service import Service
from serving.tasks.picture import Picture
from triptych import messages
from triptych import triptych_pb2 as pb
from triptych.conversion import from_proto, to_proto
from triptych.triptych_pb2_grpc import TriptychServicer, add_TriptychServicer_to_server

log = logging.getLogger(__name__)

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
            message = from_proto(request, messages.TranslateRequest)
            return (await self._service.translate(message)).response

        return await self._answer("Translate", work, context)

    async def Caption(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Pictures in words."""

        async def work() -> BaseModel:
            pictures = _taken(request)
            message = from_proto(request, messages.CaptionRequest)
            return (await self._service.caption(message, pictures)).response

        return await self._answer("Caption", work, context)

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
        metadata = dict(context.invocation_metadata() or ())
        call_id = request_id(metadata.get("x-request-id"))
        started_s, failure = time.perf_counter(), None
        try:
            check_key(metadata.get("authorization"), self._service)
            response = await self._service.in_pool(to_proto, await work())
        except asyncio.CancelledError:
            failure = CANCELLED
            raise
        except Exception as raised:  # the protocol's edge
            error = _as_ours(raised, call_id)
            failure = error.wire
        finally:
            duration_s = time.perf_counter() - started_s
            self._service.metrics.answered(f"/{NAME}/{method}", duration_s, failure)
            fields = {"request_id": call_id, "route": method, "error": failure}
            log.info("answered", extra={**fields, "duration_ms": round(duration_s * 1000, 1)})
        trailing: list[tuple[str, str | bytes]] = [("x-request-id", call_id)]
        if failure is None:
            context.set_trailing_metadata(trailing)
            return response
        await _abort(context, error, trailing)
        raise AssertionError("abort raises")


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
