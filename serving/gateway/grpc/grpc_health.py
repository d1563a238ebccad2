"""`grpc.health.v1`, which needs no key: its calls share one check."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from serving.gateway.observability.background_tasks import BackgroundTasks
from serving.gateway.requests.health import Readiness

log = logging.getLogger(__name__)

WATCH_INTERVAL_S = 2.0
MAX_WATCHERS = 256
"""Calls of `Watch` at once."""


class GrpcHealth(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """The service, with the same readiness as `/ready`.

    Args:
        service: Name of the service beside "" whose status is given.
        tasks: Runs the checks.
    """

    def __init__(self, readiness: Readiness, service: str, tasks: BackgroundTasks) -> None:
        self._readiness = readiness
        self._tasks = tasks
        self._service = service
        self._watchers = 0
        self._is_serving: bool | None = None
        """What watchers were last sent; None: not known yet."""
        self._changed = asyncio.Event()
        """Set at the next change; replaced then."""
        self._following: asyncio.Task[None] | None = None

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Whether every model responds."""
        if not self._has(request.service):
            message = f"no such service; served is {self._service}"
            await context.abort(grpc.StatusCode.NOT_FOUND, message)
        return _response(await self._is_ready())

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """The status now, and whenever it changes; an unknown service may be served later."""
        if self._watchers >= MAX_WATCHERS:
            message = f"{MAX_WATCHERS} calls watch already: call Check"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, message)
        self._watchers += 1
        try:
            if not self._has(request.service):
                yield health_pb2.HealthCheckResponse(
                    status=health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
                )
                await asyncio.Event().wait()  # until the client cancels: no service is added
            if self._following is None:
                self._following = self._tasks.start("following of readiness", self._follow)
            sent = None
            while True:
                changed = self._changed
                if self._is_serving not in (None, sent):
                    sent = self._is_serving
                    yield _response(bool(sent))
                else:
                    await changed.wait()
        finally:
            self._watchers -= 1
            if not self._watchers and self._following is not None:
                self._following.cancel()
                self._following = self._is_serving = None

    async def _is_ready(self) -> bool:
        """Whether the check passes; gRPC would send the text of an exception to the client."""
        try:
            return await self._readiness.problem() is None
        except Exception:
            log.exception("bug in the check of readiness")
            return False

    def _has(self, service: str) -> bool:
        return service in ("", self._service)

    async def _follow(self) -> None:
        """Publish every change while there are watchers."""
        while True:
            is_serving = await self._is_ready()
            if is_serving != self._is_serving:
                self._is_serving = is_serving
                self._changed.set()
                self._changed = asyncio.Event()
            await asyncio.sleep(WATCH_INTERVAL_S)


def _response(is_serving: bool) -> Any:
    status = health_pb2.HealthCheckResponse
    return status(status=status.SERVING if is_serving else status.NOT_SERVING)
