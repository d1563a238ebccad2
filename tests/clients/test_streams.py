"""Streams of all clients: chunks as they arrive, errors, ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc
import httpx
import pytest

import triptych
from tests.clients.test_grpc_client import Blocking, FakeGateway, abort, served
from tests.clients.test_http_client import QUICK, URL, Gateway, failed
from triptych import errors
from triptych import triptych_pb2 as pb
from triptych.client.conversion import from_proto, to_proto
from triptych.messages import Chunk, Generation, Usage
from triptych.tasks.generate import GenerateRequest, GenerateResponse

# ruff: noqa: N802  (gRPC names its methods)


CHUNKS = [
    Chunk(index=0, text="He"),
    Chunk(index=1, text="Bye"),
    Chunk(index=0, text="llo\n", finish_reason="length"),
    Chunk(index=1, finish_reason="stop", usage=Usage(prompt_tokens=3, completion_tokens=2)),
]
DONE = "data: [DONE]\n\n"
GONE = 'event: error\ndata: {"error":{"type":"unavailable","message":"gone"}}\n\n'


def sent(*chunks: Chunk) -> str:
    return "".join(f"data: {chunk.model_dump_json(exclude_none=True)}\n\n" for chunk in chunks)


class Body(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body in chunks, which may break; remembers how far it was read, and its end."""

    def __init__(self, *chunks: bytes | str | Exception) -> None:
        self.chunks, self.read, self.is_closed = chunks, 0, False

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self.chunks:
            self.read += 1
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk if isinstance(chunk, bytes) else chunk.encode()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self:
            yield chunk

    def close(self) -> None:
        self.is_closed = True

    async def aclose(self) -> None:
        self.is_closed = True


def streaming(*chunks: bytes | str | Exception) -> httpx.Response:
    headers = {"content-type": "text/event-stream; charset=utf-8", "x-request-id": "r1"}
    return httpx.Response(200, headers=headers, stream=Body(*chunks))


class Streams:
    """Either HTTP client; reads a stream, all of it or its beginning."""

    def __init__(self, kind: type, handler: Callable) -> None:
        transport = httpx.MockTransport(handler)
        self._client = kind(URL, transport=transport, retries=QUICK)

    def __call__(self, verb: str, *args: Any, most: int = 99, **kwargs: Any) -> list[Chunk]:
        self.seen: list[Chunk] = []
        chunks = getattr(self._client, verb)(*args, **kwargs)
        if isinstance(self._client, triptych.AsyncClient):
            asyncio.run(self._read(chunks, most))
            return self.seen
        for chunk in chunks:
            self.seen.append(chunk)
            if len(self.seen) == most:
                chunks.close()
                break
        return self.seen

    async def _read(self, chunks: AsyncIterator[Chunk], most: int) -> None:
        async for chunk in chunks:
            self.seen.append(chunk)
            if len(self.seen) == most:
                await chunks.aclose()
                break


@pytest.fixture(params=[triptych.Client, triptych.AsyncClient])
def connect(request: pytest.FixtureRequest) -> Callable[..., Streams]:
    return lambda handler: Streams(request.param, handler)


def test_chunks_arrive_as_they_were_sent(connect: Any) -> None:
    gateway = Gateway(streaming(sent(*CHUNKS), DONE))
    assert connect(gateway)("generate_stream", ["Hi", "Bye"]) == CHUNKS
    assert gateway.body == {"prompts": ["Hi", "Bye"], "stream": True}
    assert str(gateway.requests[0].url) == f"{URL}/v1/generate"


def test_chunks_may_cut_events_anywhere(connect: Any) -> None:
    body = sent(Chunk(index=0, text="ñ\u2028🙂"), *CHUNKS) + DONE
    gateway = Gateway(streaming(*(bytes([byte]) for byte in body.encode())))
    assert connect(gateway)("translate_stream", "a")[0].text == "ñ\u2028🙂"
    assert gateway.body == {"texts": ["a"], "stream": True}


def test_comments_and_unknown_fields_are_ignored(connect: Any) -> None:
    body = f": keep-alive\n\nid: 7\n{sent(CHUNKS[0])}retry: 5\n\n{DONE}"
    assert connect(Gateway(streaming(body)))("caption_stream", b"png") == CHUNKS[:1]


def test_every_field_is_sent(connect: Any) -> None:
    gateway = Gateway(streaming(DONE))
    connect(gateway)(
        "generate_stream",
        (text for text in ["a"]),
        instruction="Do",
        examples=[("x", "y")],
        stop=(text for text in ["\n"]),
        logit_bias={5: -1.0},
        temperature=0.5,
    )
    assert gateway.body == {
        "prompts": ["a"], "instruction": "Do", "examples": [{"input": "x", "output": "y"}],
        "stop": ["\n"], "logit_bias": {"5": -1.0}, "temperature": 0.5,
        "stream": True,
    }  # fmt: skip


def test_nothing_is_sent_before_the_first_chunk_is_read() -> None:
    gateway = Gateway()
    with triptych.Client(URL, transport=httpx.MockTransport(gateway)) as client:
        chunks = client.generate_stream("a")
        with pytest.raises(errors.InvalidArgument, match="temperature"):
            client.generate_stream("a", temperature=-1)
        chunks.close()
    assert gateway.requests == []


def test_closing_a_stream_closes_the_response(connect: Any) -> None:
    response = streaming(sent(CHUNKS[0]), sent(CHUNKS[1]), sent(*CHUNKS[2:]), DONE)
    body = response.stream
    assert connect(Gateway(response))("generate_stream", "a", most=1) == CHUNKS[:1]
    assert body.is_closed
    assert body.read == 1


@pytest.mark.parametrize("refusal", [429, 503, httpx.ConnectError("refused")], ids=str)
def test_failure_before_the_first_chunk_is_retried(connect: Any, refusal: Any) -> None:
    first = failed(refusal, **{"retry-after": "0"}) if isinstance(refusal, int) else refusal
    gateway = Gateway(first, streaming(sent(*CHUNKS), DONE))
    assert connect(gateway)("generate_stream", "a") == CHUNKS
    assert len(gateway.requests) == 2


def test_error_before_the_first_chunk_is_the_usual_one(connect: Any) -> None:
    with pytest.raises(errors.InvalidRequest) as caught:
        connect(Gateway(failed(422, "too_long")))("generate_stream", "a")
    assert (caught.value.type, caught.value.field) == ("too_long", "texts")


def test_error_in_the_middle_is_raised_and_not_retried(connect: Any) -> None:
    gateway = Gateway(streaming(sent(CHUNKS[0]), GONE), streaming(sent(*CHUNKS), DONE))
    streams = connect(gateway)
    with pytest.raises(errors.Unavailable, match="gone") as caught:
        streams("generate_stream", "a")
    assert streams.seen == CHUNKS[:1]
    assert (caught.value.status, caught.value.request_id) == (503, "r1")
    assert len(gateway.requests) == 1


@pytest.mark.parametrize(
    ("end", "kind", "message"),
    [
        ("", errors.ConnectionFailed, "broke off"),
        (httpx.ReadError("reset"), errors.ConnectionFailed, "reset"),
        (httpx.RemoteProtocolError("incomplete"), errors.ConnectionFailed, "incomplete"),
        (httpx.ReadTimeout("slow"), errors.Timeout, "no response"),
        ("data: hello\n\n", errors.InvalidResponse, "is not a Triptych gateway"),
        ('data: {"text": "no index"}\n\n', errors.InvalidResponse, "index"),
    ],
    ids=str,
)
def test_a_stream_that_breaks_off_is_an_error(
    connect: Any, end: str | Exception, kind: type, message: str
) -> None:
    gateway = Gateway(streaming(sent(CHUNKS[0]), end), streaming(sent(*CHUNKS), DONE))
    streams = connect(gateway)
    with pytest.raises(kind, match=message):
        streams("generate_stream", "a")
    assert streams.seen == CHUNKS[:1]
    assert len(gateway.requests) == 1


def test_response_that_is_no_stream_is_refused(connect: Any) -> None:
    with pytest.raises(
        errors.InvalidResponse, match="it sent application/json instead of text/event-stream"
    ):
        connect(Gateway(httpx.Response(200, json={})))("generate_stream", "a")


class StreamingGateway(FakeGateway):
    """Sends `CHUNKS`; breaks after `breaks_after` of them."""

    breaks_after: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.left = threading.Event()

    def Generate(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._admit(context)
        received = from_proto(request, GenerateRequest)
        data = [Generation(index=0, text=received.prompts[0], finish_reason="stop")]
        return to_proto(GenerateResponse(model="m", data=data))

    def GenerateStream(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        self._admit(context)
        assert from_proto(request, GenerateRequest).stream
        for place, chunk in enumerate(CHUNKS):
            if place == self.breaks_after:
                body = pb.ErrorBody(type="unavailable", message="gone")
                abort(grpc.StatusCode.UNAVAILABLE, "gone", body)(context)
            yield to_proto(chunk)

    def TranslateStream(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        context.add_callback(self.left.set)
        yield to_proto(CHUNKS[0])
        self.left.wait(10)

    CaptionStream = GenerateStream


@pytest.fixture
def gateway() -> StreamingGateway:
    return StreamingGateway()


@pytest.fixture(params=[triptych.GrpcClient, Blocking], ids=["blocking", "async"])
def connect_grpc(request: pytest.FixtureRequest) -> Any:
    """Makes a gRPC client of either kind."""
    return request.param


@pytest.fixture
def client(gateway: StreamingGateway, connect_grpc: Any) -> Iterator[triptych.GrpcClient]:
    with (
        served(gateway.add_to) as target,
        connect_grpc(target, timeout=10, retries=QUICK) as client,
    ):
        yield client


def test_grpc_chunks_arrive_as_they_were_sent(client: triptych.GrpcClient) -> None:
    assert list(client.generate_stream("a")) == CHUNKS
    assert client.generate("a").data[0].text == "a"


def test_grpc_refusal_is_retried_before_the_first_chunk(
    client: triptych.GrpcClient, gateway: StreamingGateway
) -> None:
    body = pb.ErrorBody(type="overloaded", message="busy")
    gateway.refusals = [abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "busy", body, retry_after="0")]
    assert list(client.generate_stream("a")) == CHUNKS
    assert gateway.calls == 2


def test_grpc_failure_in_the_middle_is_raised(
    client: triptych.GrpcClient, gateway: StreamingGateway
) -> None:
    gateway.breaks_after = 2
    seen = []
    with pytest.raises(errors.Unavailable, match="gone"):
        seen.extend(chunk for chunk in client.generate_stream("a"))
    assert gateway.calls == 1


def test_closing_a_grpc_stream_cancels_it(
    client: triptych.GrpcClient, gateway: StreamingGateway
) -> None:
    chunks = client.translate_stream("a")
    assert next(chunks) == CHUNKS[0]
    assert not gateway.left.is_set()
    chunks.close()
    assert gateway.left.wait(10)
