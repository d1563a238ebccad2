"""GrpcClient and AsyncGrpcClient against a server in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

import triptych
from triptych import errors, messages
from triptych import triptych_pb2 as pb
from triptych.client.base_client import Retries
from triptych.client.conversion import from_proto, to_proto
from triptych.tasks.caption import Caption, CaptionResponse
from triptych.tasks.translate import TranslateRequest, TranslateResponse, Translation

# ruff: noqa: N802  (gRPC names its methods)


QUICK = Retries(attempts=3, first_wait_s=0.0)
Abort = Callable[[grpc.ServicerContext], None]


def abort(
    code: grpc.StatusCode, message: str, body: pb.ErrorBody | None = None, **trailing: str
) -> Abort:
    """What a gateway does to refuse a call."""
    metadata: list[tuple[str, Any]] = [
        (name.replace("_", "-"), value) for name, value in trailing.items()
    ]
    if body is not None:
        metadata.append(("triptych-error-bin", body.SerializeToString()))

    def refuse(context: grpc.ServicerContext) -> None:
        context.set_trailing_metadata(metadata)
        context.abort(code, message)

    return refuse


class FakeGateway:
    """Repeats requests; refuses first as often as `refusals` has entries."""

    def __init__(self) -> None:
        self.refusals: list[Abort] = []
        self.metadata: dict[str, str] = {}
        self.calls = 0

    def add_to(self, server: grpc.Server) -> None:
        """Serve the methods that this class has."""
        handlers = {}
        for method in pb.DESCRIPTOR.services_by_name["Triptych"].methods:
            if hasattr(self, method.name):
                kind = "unary_stream" if method.server_streaming else "unary_unary"
                handlers[method.name] = getattr(grpc, f"{kind}_rpc_method_handler")(
                    getattr(self, method.name),
                    GetMessageClass(method.input_type).FromString,
                    GetMessageClass(method.output_type).SerializeToString,
                )
        handler = grpc.method_handlers_generic_handler("triptych.v1.Triptych", handlers)
        server.add_generic_rpc_handlers((handler,))

    def _admit(self, context: grpc.ServicerContext) -> None:
        self.calls += 1
        self.metadata = dict(context.invocation_metadata())
        if self.refusals:
            self.refusals.pop(0)(context)

    def Translate(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._admit(context)
        received = from_proto(request, TranslateRequest)
        texts = enumerate(received.texts)
        data = [Translation(index=i, text=text.upper(), score=-1.5) for i, text in texts]
        return to_proto(TranslateResponse(model=received.model or "default", data=data))

    def Caption(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._admit(context)
        data = [
            Caption(index=i, text=f"{len(image)} bytes", score=0.0)
            for i, image in enumerate(request.images)
        ]
        return to_proto(CaptionResponse(model="m", data=data))

    def ListModels(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._admit(context)
        model = messages.Model(
            id="m", version=1, architecture="a", tasks=["translate"], precision="fp32"
        )
        return to_proto(messages.ModelList(data=[model]))


@contextmanager
def served(*add: Callable[[grpc.Server], None], max_bytes: int = -1) -> Iterator[str]:
    options = [("grpc.max_receive_message_length", max_bytes)]
    server = grpc.server(ThreadPoolExecutor(max_workers=2), options=options)
    for register in add:
        register(server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(grace=0).wait()


class Blocking:
    """An `AsyncGrpcClient` with the methods of `GrpcClient`, on a loop of its own."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._client = triptych.AsyncGrpcClient(*arguments, **options)
        self._loop = asyncio.new_event_loop()

    def __enter__(self) -> Blocking:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run_until_complete(self._client.close())
        self._loop.close()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)
        if name.endswith("_stream"):
            return lambda *given, **fields: self._chunks(method(*given, **fields))
        return lambda *given, **fields: self._loop.run_until_complete(method(*given, **fields))

    def _chunks(self, chunks: Any) -> Iterator[Any]:
        try:
            while True:
                try:
                    yield self._loop.run_until_complete(anext(chunks))
                except StopAsyncIteration:
                    return
        finally:
            self._loop.run_until_complete(chunks.aclose())


@pytest.fixture(params=[triptych.GrpcClient, Blocking], ids=["blocking", "async"])
def connect(request: pytest.FixtureRequest) -> Any:
    """Makes a client of either kind."""
    return request.param


@pytest.fixture
def gateway() -> FakeGateway:
    return FakeGateway()


@pytest.fixture
def client(gateway: FakeGateway, connect: Any) -> Iterator[triptych.GrpcClient]:
    with (
        served(gateway.add_to) as target,
        connect(target, api_key="s3cret", timeout=10, retries=QUICK) as client,
    ):
        yield client


def test_translate_returns_a_typed_response(client: triptych.GrpcClient) -> None:
    response = client.translate(["ñu", "b"], model="opus")
    assert response == TranslateResponse(
        model="opus",
        data=[
            Translation(index=0, text="ÑU", score=-1.5),
            Translation(index=1, text="B", score=-1.5),
        ],
    )


def test_images_arrive_as_bytes_and_may_be_large(client: triptych.GrpcClient) -> None:
    response = client.caption([b"x" * 5_000_000, b"png"])
    assert [item.text for item in response.data] == ["5000000 bytes", "3 bytes"]


def test_message_above_the_limit_of_grpc_is_not_retried(gateway: FakeGateway, connect: Any) -> None:
    with (
        served(gateway.add_to, max_bytes=1000) as target,
        connect(target, timeout=10) as client,
        pytest.raises(errors.InvalidRequest, match="larger than max") as caught,
    ):
        client.caption(b"x" * 2000)
    assert (caught.value.status, caught.value.type) == (413, "payload_too_large")


def test_the_key_travels_as_metadata(client: triptych.GrpcClient, gateway: FakeGateway) -> None:
    client.models()
    assert gateway.metadata["authorization"] == "Bearer s3cret"


def test_error_has_the_fields_that_http_has(
    client: triptych.GrpcClient, gateway: FakeGateway
) -> None:
    body = pb.ErrorBody(type="too_long", message="ü: 600 tokens", field="texts")
    gateway.refusals = [
        abort(grpc.StatusCode.INVALID_ARGUMENT, "ü", body, x_request_id="r1", retry_after="2")
    ]
    with pytest.raises(errors.InvalidRequest) as caught:
        client.translate("a")
    error = caught.value
    assert (error.status, error.type, error.message) == (422, "too_long", "ü: 600 tokens")
    assert (error.field, error.request_id, error.retry_after_s) == ("texts", "r1", 2.0)


def test_every_error_of_the_server_has_its_http_status_and_class(
    client: triptych.GrpcClient, gateway: FakeGateway
) -> None:
    from inference import errors as server

    kinds = [
        kind
        for kind in vars(server).values()
        if isinstance(kind, type)
        and issubclass(kind, server.ServingError)
        and not issubclass(kind, server.SetupError)
    ]
    assert len(kinds) > 10
    statuses = {kind.wire: kind.http_status for kind in kinds if kind is not server.ServingError}
    assert statuses == errors.STATUS_OF_TYPE
    for kind in kinds:
        body = pb.ErrorBody(type=kind.wire, message="why")
        code = grpc.StatusCode[kind.grpc_status]
        gateway.refusals = [abort(code, "why", body) for _ in range(QUICK.attempts)]
        with pytest.raises(errors.ApiError) as caught:
            client.models()
        assert caught.value.status == kind.http_status, kind
        assert type(caught.value) is errors.BY_STATUS.get(kind.http_status, errors.ServerError)
        gateway.refusals = []


def test_full_queue_is_retried(client: triptych.GrpcClient, gateway: FakeGateway) -> None:
    body = pb.ErrorBody(type="overloaded", message="busy")
    gateway.refusals = [abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "busy", body, retry_after="0")]
    assert client.translate("a").data[0].text == "A"
    assert gateway.calls == 2


def test_invalid_request_is_not_retried(client: triptych.GrpcClient, gateway: FakeGateway) -> None:
    gateway.refusals = [abort(grpc.StatusCode.INVALID_ARGUMENT, "no")]
    with pytest.raises(errors.InvalidRequest, match="no") as caught:
        client.translate("a")
    assert caught.value.type == "grpc_invalid_argument"
    assert gateway.calls == 1


def test_unreachable_gateway_is_a_failed_connection(connect: Any) -> None:
    with (
        connect("127.0.0.1:1", timeout=5, retries=QUICK) as client,
        pytest.raises(errors.ConnectionFailed, match=r"cannot reach 127\.0\.0\.1:1"),
    ):
        client.models()


def test_late_response_is_a_timeout(gateway: FakeGateway, connect: Any) -> None:
    import threading

    release = threading.Event()
    gateway.refusals = [lambda context: bool(release.wait(10)) and None]
    with (
        served(gateway.add_to) as target,
        connect(target, timeout=0.2, retries=QUICK) as client,
    ):
        with pytest.raises(errors.Timeout, match="no response from"):
            client.models()
        release.set()
    assert gateway.calls == 1


def test_readiness_is_that_of_the_health_service(connect: Any) -> None:
    servicer = health.HealthServicer()
    statuses = health_pb2.HealthCheckResponse

    def register(server: grpc.Server) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)

    with served(register) as target, connect(target, timeout=10) as client:
        assert client.health()
        assert client.ready()
        servicer.set("", statuses.NOT_SERVING)
        assert client.health()
        assert not client.ready()
