"""The tasks over gRPC (`triptych.v1`), with health and reflection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from pydantic import BaseModel

from inference.errors import (
    DeadlineExceeded,
    InvalidRequest,
    MalformedBody,
    PayloadTooLarge,
    Unauthorized,
)
from inference.tasks import TASKS
from inference.tasks.shared.served_task import AnyTask
from serving.gateway.admission.auth import Keys
from serving.gateway.grpc.grpc_call import NAME, GrpcCall
from serving.gateway.grpc.grpc_messages import decode, encoder_of, read, task_request
from serving.gateway.observability.background_tasks import BackgroundTasks
from serving.gateway.requests.chunk_stream import ChunkStream
from serving.gateway.requests.health import Readiness
from serving.gateway.requests.service import Service, TaskRequest
from serving.ports import host_port, listening
from triptych.client.conversion import to_proto
from triptych.glossaries.messages import Glossary, GlossaryName, ListGlossariesRequest

log = logging.getLogger(__name__)

WATCH_INTERVAL_S = 2.0
MAX_WATCHERS = 256
"""Calls of `Watch` at once."""


class GrpcHealth(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """The service, with the same readiness as `/ready`.

    Args:
        tasks: Runs the checks.
    """

    def __init__(self, readiness: Readiness, tasks: BackgroundTasks) -> None:
        self._readiness = readiness
        self._tasks = tasks
        self._watchers = 0
        self._is_serving: bool | None = None
        """What watchers were last sent; None: not known yet."""
        self._changed = asyncio.Event()
        """Set at the next change; replaced then."""
        self._following: asyncio.Task[None] | None = None

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Whether every model responds."""
        if request.service not in ("", NAME):
            message = f"no such service; served is {NAME}"
            await context.abort(grpc.StatusCode.NOT_FOUND, message)
        return _response(await self._is_ready())

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """The status now, and whenever it changes; an unknown service may be served later."""
        if self._watchers >= MAX_WATCHERS:
            message = f"{MAX_WATCHERS} calls watch already: call Check"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, message)
        self._watchers += 1
        try:
            if request.service not in ("", NAME):
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


MAX_METADATA = 65_536
"""Bytes of a call's metadata, with 32 for each entry, as HTTP/2 counts."""
_ENTRY_BYTES = 32
_CONNECTION_OPTIONS = (
    ("grpc.max_concurrent_streams", 256),  # of one connection; further calls wait in the client
    ("grpc.absolute_max_metadata_size", MAX_METADATA),
    ("grpc.max_metadata_size", MAX_METADATA),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 600_000),
    ("grpc.keepalive_time_ms", 60_000),  # a client that has vanished is found by a ping
    ("grpc.keepalive_timeout_ms", 20_000),
)


def create_grpc_server(
    service: Service, readiness: Readiness, max_connections: int, shared_port: int | None = None
) -> tuple[grpc.aio.Server, int]:
    """A server that is not started yet, and the port that it will listen on.

    Args:
        service: Serves the tasks.
        readiness: The check behind gRPC's health.
        max_connections: Open at once; further ones are closed.
        shared_port: Other workers listen there, too.

    Raises:
        SetupError: the port is in use.
    """
    settings = service.settings
    names = (NAME, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name)
    guards = [KeyInterceptor(service.keys)] if service.keys.are_required else []
    server = grpc.aio.server(
        interceptors=guards,
        options=(
            ("grpc.max_receive_message_length", settings.payload_limit),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_allowed_incoming_connections", max_connections),
            *_CONNECTION_OPTIONS,
            # Otherwise a second gateway would share the port unnoticed.
            ("grpc.so_reuseport", int(shared_port is not None)),
        ),
    )
    server.add_generic_rpc_handlers((GrpcTasks(service).handlers(),))
    tasks = BackgroundTasks(service.metrics.failed_in_background)
    health_pb2_grpc.add_HealthServicer_to_server(GrpcHealth(readiness, tasks), server)
    reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), server)
    if shared_port is None:
        # gRPC takes no socket of ours, and logs more than one line about a port in use.
        listening(settings.host, settings.grpc_port, "gRPC").close()
    port = settings.grpc_port if shared_port is None else shared_port
    return server, server.add_insecure_port(host_port(settings.host, port))


class GrpcTasks:
    """The methods of `triptych.v1.Triptych`: one for each task, one more for its stream."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def handlers(self) -> grpc.GenericRpcHandler:
        """Handlers of all methods that the proto declares."""
        methods = {"ListModels": self._unary("ListModels", self._list_models)}
        glossaries = self._service.glossaries
        for method, message, use in (
            ("PutGlossary", Glossary, glossaries.put),
            ("GetGlossary", GlossaryName, glossaries.get),
            ("ListGlossaries", ListGlossariesRequest, glossaries.listing),
            ("DeleteGlossary", GlossaryName, glossaries.delete),
        ):
            methods[method] = self._unary(method, self._use_glossaries(method, message, use))
        for task in TASKS.values():
            verb = task.declaration.verb
            methods[verb] = self._unary(verb, self._answer(task))
            if task.declaration.streams:
                methods[f"{verb}Stream"] = self._streaming(f"{verb}Stream", self._begin(task))
        return _Gate(grpc.method_handlers_generic_handler(NAME, methods), self._service)

    def _answer(self, task: AnyTask) -> Callable[[bytes], Awaitable[Any]]:
        method = task.declaration.verb

        async def work(data: bytes) -> Any:
            parsed = await self._parse(data, task, method)
            if parsed.streams:
                raise InvalidRequest(
                    f"this method does not stream: call {method}Stream", field="stream"
                )
            response, _ = await self._service.answer(parsed)
            # Arrays are copied as they are, which is less work than to hand them to a thread.
            size = 0 if task.has_vectors else None
            return await self._service.in_pool(size, to_proto, response)

        return work

    def _use_glossaries(
        self, method: str, message: type[BaseModel], use: Callable[[Any], Awaitable[Any]]
    ) -> Callable[[bytes], Awaitable[Any]]:
        service = self._service

        async def work(data: bytes) -> Any:
            service.check()
            given = await service.in_pool(len(data), read, data, method, message)
            found = await use(given)
            if isinstance(found, tuple):  # with its version, which only HTTP shows
                found, _ = found
            return await service.in_pool(None, to_proto, found)

        return work

    def _begin(self, task: AnyTask) -> Callable[[bytes], Awaitable[ChunkStream]]:
        method = f"{task.declaration.verb}Stream"

        async def begin(data: bytes) -> ChunkStream:
            return self._service.stream(await self._parse(data, task, method, stream=True))

        return begin

    async def _parse(
        self, data: bytes, task: AnyTask, method: str, *, stream: bool | None = None
    ) -> TaskRequest:
        """The task request of a serialized message, off the event loop where that is large.

        Raises:
            Overloaded: the gateway is full; nothing is decoded.
            InvalidRequest: not such a message, or a field is not valid.
        """
        service = self._service
        service.check()
        parsed = await service.in_pool(len(data), task_request, data, task, method, stream)
        return await service.add_stored_terms(parsed)

    async def _list_models(self, data: bytes) -> Any:
        service = self._service
        await service.in_pool(len(data), decode, data, "ListModels")
        return await service.in_pool(None, to_proto, service.catalog.listing())

    # On the wire a call with one message is a stream of one, which the handler reads itself.
    def _unary(self, method: str, work: Callable[[bytes], Awaitable[Any]]) -> Any:
        """The handler that sends the work's response, or ends the call with the error's status."""
        service = self._service

        async def answer(_: Any, context: Any) -> Any:
            async with GrpcCall(method, context, self._service) as call:
                data = await self._receive(context)
                with service.admission.body() as reserve:
                    reserve(len(data))
                    call.response = await work(data)
            await call.end()
            return call.response

        return grpc.stream_unary_rpc_method_handler(answer, response_serializer=encoder_of(method))

    def _streaming(self, method: str, begin: Callable[[bytes], Awaitable[ChunkStream]]) -> Any:
        """The handler that sends a stream's chunks; ends with the error's status if it fails.

        A client that does not read ends its call like one that cancels it.
        """
        timeout_s = self._service.settings.write_timeout

        async def send(_: Any, context: Any) -> None:
            async with GrpcCall(method, context, self._service) as call:
                data = await self._receive(context)
                with self._service.admission.body() as reserve:
                    reserve(len(data))
                    stream = await begin(data)
                    try:
                        async for chunks in stream.batches():
                            for chunk in chunks:
                                await _write(context, to_proto(chunk), timeout_s)
                    finally:
                        await stream.close()
            await call.end()

        return grpc.stream_stream_rpc_method_handler(send, response_serializer=encoder_of(method))

    async def _receive(self, context: Any) -> bytes:
        """The call's message. gRPC does not show how much of one has arrived.

        Raises:
            DeadlineExceeded: it takes longer than a request may.
            MalformedBody: there is none.
        """
        timeout_s = self._service.settings.request_timeout
        try:
            async with asyncio.timeout(timeout_s):
                received: bytes = await context.read()
        except TimeoutError:
            raise DeadlineExceeded(
                f"the request's message did not arrive within {timeout_s:g} s"
            ) from None
        if received is grpc.aio.EOF:
            raise MalformedBody("the call has no message")
        return received


class _Gate(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Refuses a call without its key, or with too much metadata, before its message is read.

    gRPC bounds the metadata of each frame and not their sum, which may be 16 MiB. They are read
    once here, and not a second time to refuse the call.

    Args:
        service: Has the keys.
    """

    def __init__(self, handlers: grpc.GenericRpcHandler, service: Service) -> None:
        self._handlers, self._service = handlers, service

    def service(self, handler_call_details: Any) -> Any:
        """The handler of a method; None for those of other services."""
        handler = self._handlers.service(handler_call_details)
        metadata = handler_call_details.invocation_metadata
        kept = None
        size = sum(_ENTRY_BYTES + len(name) + len(value) for name, value in metadata)
        if size > MAX_METADATA:
            kept = [(name, value) for name, value in metadata if name == "authorization"]
        elif self._has_key(dict(metadata).get("authorization")):
            return handler
        return handler and self._refuse(handler_call_details.method.rpartition("/")[2], kept)

    def _has_key(self, given: str | None) -> bool:
        try:
            self._service.keys.check_header(given)
        except Unauthorized:
            return False
        return True

    def _refuse(self, method: str, kept: list[tuple[str, str]] | None) -> Any:
        """A handler that refuses: too much metadata, of which it keeps the key, or no key."""

        async def refuse(_: Any, context: Any) -> None:
            async with GrpcCall(method, context, self._service, kept) as call:
                raise PayloadTooLarge(f"the call's metadata has more than {MAX_METADATA} bytes")
            await call.end()

        return grpc.stream_stream_rpc_method_handler(refuse)


async def _write(context: Any, message: Any, timeout_s: float) -> None:
    """Send a message of a stream.

    Raises:
        DeadlineExceeded: the client has not read those before it.
        CancelledError: it has left.
    """
    try:
        async with asyncio.timeout(timeout_s):
            await context.write(message)
    except TimeoutError:
        raise DeadlineExceeded(f"the stream was not read for {timeout_s:g} s") from None
    except grpc.aio.InternalError:  # the client left while the message was sent
        raise asyncio.CancelledError from None


_PASSED = ("/grpc.health.v1.Health/", f"/{NAME}/")
"""Services that need no key, or whose methods check it."""


class KeyInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Requires a key of every service but health and the one that checks it itself.

    Args:
        keys: There is at least one.
    """

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> Any:
        """The method's handler, or one that refuses."""
        if not details.method.startswith(_PASSED):
            try:
                self._keys.check_header(dict(details.invocation_metadata).get("authorization"))
            except Unauthorized as error:
                return _refuse(error.message)
        return await continuation(details)


def _refuse(message: str) -> grpc.RpcMethodHandler:
    async def refuse(_: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, message)

    return grpc.stream_stream_rpc_method_handler(refuse)
