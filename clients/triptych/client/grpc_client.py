"""The gRPC clients: the same methods, responses and exceptions as over HTTP."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Generator
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2_grpc

from triptych.client import grpc_exchange
from triptych.client.base_client import Response, Retries
from triptych.client.http_client import DEFAULT_TIMEOUT_S
from triptych.client.http_exchange import headers
from triptych.generated.methods import AwaitableMethods, BlockingMethods
from triptych.operation import Operation
from triptych.triptych_pb2_grpc import TriptychStub

DEFAULT_TARGET = "127.0.0.1:8081"


class _Connection(ABC):
    """What both clients are given, and the channel that each opens in its own time."""

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        api_key: str | None = None,
        timeout: float | None = DEFAULT_TIMEOUT_S,
        retries: Retries | None = None,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        self._target = target
        self._timeout_s = timeout
        self._retries = retries or Retries()
        self._metadata = tuple(headers(api_key).items())
        self._credentials = credentials
        self._begin()

    @abstractmethod
    def _begin(self) -> None: ...

    def _open(self, transport: Any) -> Any:
        """A channel of `grpc`, or of `grpc.aio`."""
        if self._credentials is None:
            return transport.insecure_channel(self._target, options=grpc_exchange.OPTIONS)
        return transport.secure_channel(
            self._target, self._credentials, options=grpc_exchange.OPTIONS
        )


class GrpcClient(_Connection, BlockingMethods):
    """A gateway over gRPC; one client may be used by several threads.

    ```python
    with GrpcClient("127.0.0.1:8081") as client:
        client.zero_shot("boat.png", labels=["a boat", "a horse"]).data[0].labels
    ```

    Args:
        target: `host:port` of the gateway's gRPC server.
        api_key: Sent as a bearer token.
        timeout: Seconds for one attempt, of a stream for all its chunks.
        retries: How often broken connections, RESOURCE_EXHAUSTED and UNAVAILABLE are retried.
        credentials: For TLS, e.g. `grpc.ssl_channel_credentials()`; plain text without.
    """

    def _begin(self) -> None:
        self._channel = self._open(grpc)
        self._stub = TriptychStub(self._channel)
        self._health = health_pb2_grpc.HealthStub(self._channel)

    def health(self) -> bool:
        self._check()
        return True

    def ready(self) -> bool:
        return grpc_exchange.is_serving(self._check())

    def close(self) -> None:
        self._channel.close()

    def send(self, operation: Operation[Response]) -> Response:
        return self._retries.run(lambda: self._attempt(operation))

    def _attempt(self, operation: Operation[Response]) -> Response:
        request, method = grpc_exchange.message_of(operation), getattr(self._stub, operation.method)
        with grpc_exchange.errors(self._target):
            message = method(request, timeout=self._timeout_s, metadata=self._metadata)
        return grpc_exchange.parse(message, operation, self._target)

    def stream(self, operation: Operation[Response]) -> Generator[Response, None, None]:
        request, method = grpc_exchange.message_of(operation), getattr(self._stub, operation.method)

        def begin() -> tuple[Any, Message | None]:
            stream = method(request, timeout=self._timeout_s, metadata=self._metadata)
            with grpc_exchange.errors(self._target):
                return stream, next(stream, None)

        stream, message = self._retries.run(begin)
        try:
            with grpc_exchange.errors(self._target):
                while message is not None:
                    yield grpc_exchange.parse(message, operation, self._target)
                    message = next(stream, None)
        finally:
            stream.cancel()

    def _check(self) -> Any:
        """What the health protocol says of the whole server."""
        request = grpc_exchange.HEALTH_REQUEST
        with grpc_exchange.errors(self._target):
            return self._health.Check(request, timeout=self._timeout_s, metadata=self._metadata)


class AsyncGrpcClient(_Connection, AwaitableMethods):
    """A gateway over gRPC, for asyncio; otherwise as `GrpcClient`.

    ```python
    async with AsyncGrpcClient("127.0.0.1:8081") as client:
        answer = await client.caption("boat.png")
    ```

    One client belongs to one event loop: the one that runs when it is first used.
    """

    def _begin(self) -> None:
        self._opened: grpc.aio.Channel | None = None

    @property
    def _channel(self) -> grpc.aio.Channel:
        """Opened by the first call, because a channel belongs to the loop that runs then."""
        if self._opened is None:
            self._opened = self._open(grpc.aio)
        return self._opened

    async def health(self) -> bool:
        await self._check()
        return True

    async def ready(self) -> bool:
        return grpc_exchange.is_serving(await self._check())

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.close()
            self._opened = None

    async def send(self, operation: Operation[Response]) -> Response:
        return await self._retries.run_async(lambda: self._attempt(operation))

    async def _attempt(self, operation: Operation[Response]) -> Response:
        request, method = grpc_exchange.message_of(operation), self._method(operation)
        with grpc_exchange.errors(self._target):
            message = await method(request, timeout=self._timeout_s, metadata=self._metadata)
        return grpc_exchange.parse(message, operation, self._target)

    async def stream(self, operation: Operation[Response]) -> AsyncGenerator[Response, None]:
        request, method = grpc_exchange.message_of(operation), self._method(operation)

        async def begin() -> tuple[Any, Any]:
            call = method(request, timeout=self._timeout_s, metadata=self._metadata)
            with grpc_exchange.errors(self._target):
                return call, await call.read()

        call, message = await self._retries.run_async(begin)
        try:
            with grpc_exchange.errors(self._target):
                while message is not grpc.aio.EOF:
                    yield grpc_exchange.parse(message, operation, self._target)
                    message = await call.read()
        finally:
            call.cancel()

    def _method(self, operation: Operation[Any]) -> Any:
        return getattr(TriptychStub(self._channel), operation.method)

    async def _check(self) -> Any:
        """What the health protocol says of the whole server."""
        stub = health_pb2_grpc.HealthStub(self._channel)
        request = grpc_exchange.HEALTH_REQUEST
        with grpc_exchange.errors(self._target):
            return await stub.Check(request, timeout=self._timeout_s, metadata=self._metadata)
