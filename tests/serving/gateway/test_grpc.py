"""The tasks over gRPC: the same answers, errors as statuses, health, and counts of values."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator
from itertools import starmap
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from inference.errors import MalformedBody, PayloadTooLarge, Unavailable
from serving.gateway.grpc import grpc_front, grpc_messages
from serving.gateway.grpc.grpc_call import GrpcCall
from serving.gateway.grpc.grpc_front import MAX_METADATA, NAME, create_grpc_server
from serving.gateway.grpc.grpc_messages import count_values
from serving.gateway.http.bodies import MAX_VALUES
from tests.attack.cases.rpc import _CONTINUATION, _END_HEADERS, _HEADERS, _PREFACE, _frame, _literal
from tests.inference.tiny_models import image_file
from tests.serving.gateway.conftest import Gateway, MakeGateway
from tests.serving.waiting import until
from triptych import triptych_pb2 as pb
from triptych.triptych_pb2_grpc import TriptychStub


class Front:
    """A gRPC front on a free port of loopback, and a channel to it."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self._server, self.port = create_grpc_server(gateway.service, gateway.readiness, 64)

    async def __aenter__(self) -> Front:
        await self._server.start()
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{self.port}")
        self.stub = TriptychStub(self.channel)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()
        await self._server.stop(0)


@pytest.fixture
async def front(make_gateway: MakeGateway) -> AsyncIterator[Front]:
    async with Front(make_gateway(grpc_port=0)) as front:
        yield front


async def failure(call: grpc.aio.UnaryUnaryCall) -> tuple[grpc.StatusCode, pb.ErrorBody, dict]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    trailing = dict(caught.value.trailing_metadata())
    body = pb.ErrorBody.FromString(trailing["triptych-error-bin"])
    assert body.message == caught.value.details()
    return caught.value.code(), body, trailing


async def test_chunks_are_sent_as_they_are_generated(front: Front) -> None:
    steps = front.gateway.inference.steps = asyncio.Semaphore(1)
    call = front.stub.GenerateStream(pb.GenerateRequest(prompts=["uno dos"]))
    assert (await call.read()).text == "uno"
    steps.release()
    assert (await call.read()).text == " dos"
    steps.release()
    assert (await call.read()).finish_reason == "stop"
    assert await call.read() is grpc.aio.EOF


async def streamed_failure(call: grpc.aio.UnaryStreamCall) -> tuple[list, tuple]:
    pieces: list = []

    async def read() -> None:
        async for piece in call:
            pieces.append(piece)  # noqa: PERF401

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read()
    trailing = dict(caught.value.trailing_metadata())
    body = pb.ErrorBody.FromString(trailing["triptych-error-bin"])
    return pieces, (caught.value.code(), body.type, body.field, trailing)


async def test_stream_that_fails_in_the_middle_has_a_status(front: Front) -> None:
    front.gateway.inference.breaks[1] = Unavailable("restarted", retry_after_s=1)
    call = front.stub.GenerateStream(pb.GenerateRequest(prompts=["uno dos"]))
    pieces, (code, kind, _, trailing) = await streamed_failure(call)
    assert "".join(piece.text for piece in pieces) == "uno"
    assert (code, kind) == (grpc.StatusCode.UNAVAILABLE, "unavailable")
    assert trailing["retry-after"] == "1"


@pytest.mark.parametrize("method", ["Translate", "Caption", "Generate"])
async def test_unary_method_refuses_to_stream(front: Front, method: str) -> None:
    requests = {
        "Translate": pb.TranslateRequest(texts=["a"], stream=True),
        "Caption": pb.CaptionRequest(images=[image_file("red")], stream=True),
        "Generate": pb.GenerateRequest(prompts=["a"], stream=True),
    }
    _, body, _ = await failure(getattr(front.stub, method)(requests[method]))
    assert (body.type, body.field) == ("invalid_request", "stream")


async def test_cancelled_call_ends_the_stream(front: Front) -> None:
    inference = front.gateway.inference
    inference.steps = asyncio.Semaphore(1)
    call = front.stub.GenerateStream(pb.GenerateRequest(prompts=["uno dos"]))
    assert (await call.read()).text == "uno"
    call.cancel()
    await until(lambda: inference.cancelled)
    assert inference.running == 0


@pytest.mark.parametrize(
    "data",
    [b"\xff\xff", b"\x0a\x02\xff\xfe", b"\x0a\x05abc", b"\x0a\x03\xed\xa0\x80"],
    ids=["tag", "not UTF-8", "cut off", "lone surrogate"],
)
@pytest.mark.parametrize("method", ["Translate", "CaptionStream"])
async def test_message_that_cannot_be_decoded_is_invalid_argument(
    front: Front, caplog: pytest.LogCaptureFixture, method: str, data: bytes
) -> None:
    code, body, trailing = await failure(raw_call(front, method, data))
    assert (code, body.type) == (grpc.StatusCode.INVALID_ARGUMENT, "malformed_body")
    assert trailing["x-request-id"]
    assert "Traceback" not in caplog.text


async def test_metrics_count_by_method_and_error(front: Front) -> None:
    await front.stub.Translate(pb.TranslateRequest(texts=["a"]))
    await failure(raw_call(front, "TranslateStream", b"\xff"))
    text = front.gateway.service.metrics.exposition().decode()
    assert f'request_success_total{{route="/{NAME}/Translate"}} 1.0' in text
    failed = f'request_failure_total{{route="/{NAME}/TranslateStream",type="malformed_body"}} 1.0'
    assert failed in text


@pytest.mark.parametrize("method", ["Translate", "CaptionStream"])
async def test_refused_request_is_not_decoded(front: Front, method: str) -> None:
    front.gateway.service.is_draining = True
    code, body, _ = await failure(raw_call(front, method, b"\xff"))
    assert (code, body.type) == (grpc.StatusCode.UNAVAILABLE, "unavailable")


def raw_call(front: Front, method: str, data: bytes) -> grpc.aio.UnaryUnaryCall:
    """A call with bytes that need not be a message."""
    return front.channel.unary_unary(f"/{NAME}/{method}")(data)


async def test_bug_is_internal_without_its_text(front: Front) -> None:
    front.gateway.inference.failures["tiny-translate"] = ValueError("secret")
    code, body, _ = await failure(front.stub.Translate(pb.TranslateRequest(texts=["a"])))
    assert (code, body.type) == (grpc.StatusCode.INTERNAL, "internal")
    assert "secret" not in body.message


@pytest.mark.parametrize("method", ["Translate", "TranslateStream", "ListModels"])
async def test_key_is_checked_before_the_message_is_read(
    make_gateway: MakeGateway, method: str
) -> None:
    async with Front(make_gateway(grpc_port=0, api_key="sesame")) as front:
        call = front.channel.stream_stream(f"/{NAME}/{method}")()  # sends no message
        assert await asyncio.wait_for(call.code(), 10) is grpc.StatusCode.UNAUTHENTICATED
        assert "Bearer" in await call.details()
        named = dict(await call.trailing_metadata())
        assert {"x-request-id", "triptych-error-bin"} <= set(named)
        metrics = front.gateway.service.metrics.exposition().decode()
        assert f'route="/{NAME}/{method}",type="unauthorized"}} 1.0' in metrics


@pytest.mark.parametrize(
    ("key", "error"), [("sesame", "payload_too_large"), (None, "unauthorized")]
)
async def test_metadata_of_many_frames_are_bounded_together(
    make_gateway: MakeGateway, key: str | None, error: str
) -> None:
    """GRPC's own bound is that of a frame."""
    named = [(":method", "POST"), (":scheme", "http"), (":path", f"/{NAME}/Translate")]
    named += [(":authority", "a"), ("content-type", "application/grpc"), ("te", "trailers")]
    named += [("authorization", f"Bearer {key}")] if key else []
    further = [_literal(f"x-{number}", "v" * 1000) for number in range(80)]
    assert sum(map(len, further)) > MAX_METADATA
    frames = [_frame(_HEADERS, 0, 1, b"".join(starmap(_literal, named)))]
    frames += [_frame(_CONTINUATION, 0, 1, b"".join(further[n : n + 10])) for n in range(0, 80, 10)]
    frames += [_frame(_CONTINUATION, _END_HEADERS, 1)]
    async with Front(make_gateway(grpc_port=0, api_key="sesame")) as front:
        _, writer = await asyncio.open_connection("127.0.0.1", front.port)
        writer.write(_PREFACE + b"".join(frames))
        metrics = front.gateway.service.metrics
        wanted = f'route="/{NAME}/Translate",type="{error}"}} 1.0'
        await until(lambda: wanted in metrics.exposition().decode())
        writer.close()


@pytest.mark.parametrize("method", ["Translate", "TranslateStream", "ListModels", "PutGlossary"])
async def test_messages_count_as_bodies(make_gateway: MakeGateway, method: str) -> None:
    async with Front(make_gateway(grpc_port=0, max_concurrent_bytes=1000)) as front:
        large = pb.TranslateRequest(texts=["a" * 70_000], num_beams=1).SerializeToString()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await raw_call(front, method, large)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "66536 bytes" in (caught.value.details() or "")


@pytest.mark.parametrize("method", ["Translate", "TranslateStream", "ListModels", "PutGlossary"])
async def test_message_that_does_not_arrive_ends_the_call(
    make_gateway: MakeGateway, method: str
) -> None:
    async with Front(make_gateway(grpc_port=0, request_timeout=0.2)) as front:
        call = front.channel.stream_stream(f"/{NAME}/{method}")()  # sends no message, and goes on
        assert await asyncio.wait_for(call.code(), 10) is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "did not arrive within 0.2 s" in await call.details()
        metrics = front.gateway.service.metrics.exposition().decode()
        assert f'route="/{NAME}/{method}",type="deadline_exceeded"}} 1.0' in metrics


@pytest.mark.parametrize("method", ["Translate", "TranslateStream"])
async def test_call_without_a_message_is_malformed(front: Front, method: str) -> None:
    call = front.channel.stream_stream(f"/{NAME}/{method}")()
    await call.done_writing()
    assert await asyncio.wait_for(call.code(), 10) is grpc.StatusCode.INVALID_ARGUMENT
    assert "no message" in await call.details()


@pytest.mark.parametrize("compression", [None, grpc.Compression.Gzip])
async def test_message_beyond_the_payload_limit_is_refused(
    make_gateway: MakeGateway,
    caplog: pytest.LogCaptureFixture,
    compression: grpc.Compression | None,
) -> None:
    """A compressed one by gRPC itself, once it has begun the call: nothing more can be sent."""
    gateway = make_gateway(grpc_port=0, payload_limit=1024)
    async with Front(gateway) as front:
        request = pb.TranslateRequest(texts=["a" * 5000])
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await front.stub.Translate(request, compression=compression)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "Traceback" not in caplog.text


async def test_refusal_of_a_call_that_grpc_has_ended_is_no_bug(gateway: Gateway) -> None:
    class Ended:
        """The context of a call whose status cannot be sent any more."""

        def invocation_metadata(self) -> tuple[()]:
            return ()

        def time_remaining(self) -> None:
            return None

        async def abort(self, *_: object, **__: object) -> None:
            raise grpc.aio.InternalError('Failed "execute_batch"')

    call = GrpcCall("Translate", Ended(), gateway.service)
    async with call:
        raise MalformedBody("the call has no message")
    with pytest.raises(asyncio.CancelledError):
        await call.end()


async def test_disconnect_ends_the_work(front: Front) -> None:
    inference = front.gateway.inference
    inference.hold = asyncio.Event()
    call = front.stub.Translate(pb.TranslateRequest(texts=["a"]))
    async with asyncio.timeout(5):
        await until(lambda: inference.running)
        call.cancel()
        await until(lambda: inference.cancelled)
    assert inference.running == 0


async def test_key_is_required(make_gateway: MakeGateway) -> None:
    async with Front(make_gateway(grpc_port=0, api_key="sesame")) as front:
        request = pb.TranslateRequest(texts=["a"])
        code, _, _ = await failure(front.stub.Translate(request))
        assert code is grpc.StatusCode.UNAUTHENTICATED
        metadata = (("authorization", "Bearer sesame"), ("x-request-id", "abc"))
        call = front.stub.Translate(request, metadata=metadata)
        assert (await call).data[0].text == "a"
        assert dict(await call.trailing_metadata())["x-request-id"] == "abc"


async def test_health_agrees_with_ready(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_front, "WATCH_INTERVAL_S", 0.05)
    stub = health_pb2_grpc.HealthStub(front.channel)
    serving = health_pb2.HealthCheckResponse
    for service in ("", NAME):
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
        assert answer.status == serving.SERVING
    watch = stub.Watch(health_pb2.HealthCheckRequest())
    assert (await watch.read()).status == serving.SERVING
    front.gateway.service.is_draining = True
    assert (await stub.Check(health_pb2.HealthCheckRequest())).status == serving.NOT_SERVING
    assert (await asyncio.wait_for(watch.read(), 10)).status == serving.NOT_SERVING
    watch.cancel()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Check(health_pb2.HealthCheckRequest(service="other"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_watched_service_that_is_unknown_stays_unknown_without_a_check(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_front, "MAX_WATCHERS", 1)
    stub = health_pb2_grpc.HealthStub(front.channel)
    unknown = stub.Watch(health_pb2.HealthCheckRequest(service="other"))
    assert (await unknown.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    with pytest.raises(grpc.aio.AioRpcError) as caught:  # it counts as one that watches
        await stub.Watch(health_pb2.HealthCheckRequest()).read()
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    unknown.cancel()


async def test_watchers_share_one_check_and_are_bounded(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_front, "WATCH_INTERVAL_S", 0.05)
    monkeypatch.setattr(grpc_front, "MAX_WATCHERS", 20)
    checks = 0
    problem = front.gateway.readiness.problem

    async def counted() -> str | None:
        nonlocal checks
        checks += 1
        return await problem()

    monkeypatch.setattr(front.gateway.readiness, "problem", counted)
    stub = health_pb2_grpc.HealthStub(front.channel)
    watches = [stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(20)]
    for watch in watches:
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    assert checks < 20
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Watch(health_pb2.HealthCheckRequest()).read()
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    front.gateway.service.is_draining = True
    for watch in watches:
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watch.cancel()


CHAT = pb.ChatRequest(
    messages=[{"role": "user", "content": "a" * 300}, {"role": "assistant"}],
    temperature=0.5,
    max_new_tokens=300,
    logit_bias={3: -1.0, 400: 2.0},
    stop=["x", ""],
)
MESSAGES = [
    CHAT,
    pb.TranslateRequest(),
    pb.TranslateRequest(texts=["a", "", "b" * 200], glossary={"mundo": "globe", "": ""}),
    pb.CaptionRequest(images=[bytes(1000), b"\x0a" * 77], num_beams=3),
]


def count_parsed(message: Any) -> int:
    """The same count from the parsed message: an entry of a map is itself, a key and a value."""
    count = 0
    for field, value in message.ListFields():
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        values = value if field.is_repeated and not is_map else [value]
        if is_map:
            count += 3 * len(value)
        elif field.message_type is not None:
            count += sum(1 + count_parsed(one) for one in values)
        else:
            count += len(values)
    return count


@pytest.mark.parametrize("message", MESSAGES)
def test_values_are_those_of_the_parsed_message(message: Any) -> None:
    data = message.SerializeToString()
    assert count_values(data, message.DESCRIPTOR, 10**6) == count_parsed(message)


def test_fields_of_a_group_are_not_taken_for_those_of_the_message() -> None:
    """Else this entry of `glossary` would hide what follows: in it, a length of 268 million."""
    glossary = pb.TranslateRequest.DESCRIPTOR.fields_by_name["glossary"].number
    hidden = bytes([glossary << 3 | 2, 5]) + b"\x0a\xff\xff\xff\x7f"
    group = b"\xa3\x06" + hidden + b"\xa4\x06"
    texts = pb.TranslateRequest(texts=["a"] * 1000)
    data = group + texts.SerializeToString()
    assert len(pb.TranslateRequest.FromString(data).texts) == 1000
    assert count_values(data, pb.TranslateRequest.DESCRIPTOR, 10**6) == 1003


def test_count_ends_beyond_the_limit_and_at_what_is_no_message() -> None:
    data = pb.TranslateRequest(texts=["a"] * 1000).SerializeToString()
    assert count_values(data, pb.TranslateRequest.DESCRIPTOR, 10) == 11
    numbers = random.Random(3)
    for _ in range(2000):
        garbage = numbers.randbytes(numbers.randrange(40))
        assert 0 <= count_values(garbage, pb.ChatRequest.DESCRIPTOR, 100) <= len(garbage)


@pytest.mark.parametrize("method", ["Translate", "TranslateStream", "ListModels", "PutGlossary"])
@pytest.mark.parametrize(
    "data",
    [
        b"\x1a\x00" * (MAX_VALUES + 1),  # a text
        b"\xa0\x06\x01" * (MAX_VALUES + 1),  # an unknown field
        b"\x0b" * (MAX_VALUES + 1),  # groups in groups
    ],
    ids=["text", "unknown", "groups"],
)
async def test_messages_of_too_many_values_are_refused_off_the_event_loop(
    make_gateway: MakeGateway, monkeypatch: pytest.MonkeyPatch, method: str, data: bytes
) -> None:
    counting = []

    def count(*given: Any) -> int:
        counting.append(threading.current_thread())
        return count_values(*given)

    monkeypatch.setattr(grpc_messages, "count_values", count)
    async with Front(make_gateway(grpc_port=0)) as front:
        _, body, _ = await failure(raw_call(front, method, data))
        assert body.type == "payload_too_large"
        assert f"{MAX_VALUES} values" in body.message
    assert counting
    assert threading.current_thread() not in counting


def test_packed_numbers_of_a_request_are_counted() -> None:
    """They are one field on the wire, in which a number has a byte or more."""
    few = pb.ZeroShotRequest(frame_counts=[1, 300] * 500)
    assert 1000 <= count_values(few.SerializeToString(), few.DESCRIPTOR, 10**6) <= 1501
    many = pb.ZeroShotRequest(frame_counts=[1] * (MAX_VALUES + 1))
    with pytest.raises(PayloadTooLarge, match=f"{MAX_VALUES} values"):
        grpc_messages.decode(many.SerializeToString(), "ZeroShot")
