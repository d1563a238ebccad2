"""Work ends with its client, and unread streams end in time."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncGenerator
from typing import Any

import grpc
import httpx
import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message

from inference.errors import Overloaded
from inference.generation import Finished, TokenChunk
from inference.tasks.shared.model_calls import GenerateCall
from serving.gateway.grpc.grpc_front import _write
from serving.gateway.http.router import DISCONNECTED, unless_disconnected
from serving.gateway.requests import chunk_stream
from serving.gateway.server import run_server as server
from serving.ports import listening
from serving.settings.gateway_settings import GatewaySettings
from tests.serving.gateway.conftest import FakeInference
from tests.serving.gateway.server.test_run_server import (
    Running,
    repository,  # noqa: F401
    settings,  # noqa: F401
)
from tests.serving.waiting import until
from triptych import triptych_pb2 as pb
from triptych.triptych_pb2_grpc import TriptychStub


async def test_disconnect_ends_the_work() -> None:
    ended = asyncio.Event()

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(ClientDisconnect):
        await unless_disconnected({}, receive, work())
    assert ended.is_set()


@pytest.mark.parametrize("turns", range(6))
async def test_disconnect_in_the_moment_of_a_refusal_cancels_nothing(turns: int) -> None:
    """Whichever comes first: the task goes on to send the refusal, or sees the disconnect."""
    refused = asyncio.get_running_loop().create_future()

    async def receive() -> Message:
        for _ in range(turns):
            await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    async def work() -> None:
        await refused

    async def refuse() -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        if not refused.done():
            refused.set_exception(Overloaded("full"))

    refusing = asyncio.ensure_future(refuse())
    with pytest.raises((Overloaded, ClientDisconnect)):
        await unless_disconnected({}, receive, work())
    for _ in range(5):  # a late cancellation would end one of these
        await asyncio.sleep(0)
    await refusing
    task = asyncio.current_task()
    assert not task.cancelling()


async def test_work_that_ends_while_the_client_disconnects_is_not_cancelled_later() -> None:
    gone = asyncio.Event()

    async def receive() -> Message:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def work() -> str:
        await asyncio.sleep(0)  # `receive` waits
        gone.set()
        await asyncio.sleep(0)  # `receive` returns: what it calls is scheduled
        return "done"

    assert await unless_disconnected({}, receive, work()) == "done"
    for _ in range(5):
        await asyncio.sleep(0)


async def test_disconnect_that_the_server_notes_ends_the_work() -> None:
    disconnected = asyncio.get_running_loop().create_future()
    scope = {DISCONNECTED: disconnected}

    async def receive() -> Message:
        raise AssertionError("nothing reads beside the server")

    async def work() -> str:
        await asyncio.sleep(0)
        return "done"

    assert await unless_disconnected(scope, receive, work()) == "done"
    assert not disconnected.cancelled()
    asyncio.get_running_loop().call_soon(disconnected.set_result, None)
    with pytest.raises(ClientDisconnect):
        await unless_disconnected(scope, receive, asyncio.Event().wait())
    with pytest.raises(ClientDisconnect):
        await unless_disconnected(scope, receive, asyncio.Event().wait())  # also behind it


BODY = json.dumps({"texts": "a", "num_beams": 1, "stream": True}).encode()
SMALL_WINDOW = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 4096))
REQUEST = (
    b"POST /v1/translate HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(BODY), BODY)
)


class Endless(FakeInference):
    """Streams without end, as fast as they are taken."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = 0

    async def stream(
        self, call: GenerateCall, timeout_s: float
    ) -> AsyncGenerator[TokenChunk | Finished, None]:
        async with self._work(call):
            letter = int(call.inputs["source_ids"][1])  # behind the start token
            while True:
                self.sent += 1
                await asyncio.sleep(0.001)
                yield TokenChunk((letter,) * 200, (), ())


@pytest.fixture
async def running(
    settings: GatewaySettings,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncGenerator[Running, None]:
    def listening_with_small_buffers(*address: Any) -> socket.socket:
        listener = listening(*address)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return listener

    monkeypatch.setattr(server, "listening", listening_with_small_buffers)
    times = {"graceful_termination_timeout": 0.0, "write_timeout": 1.5}
    running = Running(settings.model_copy(update=times))
    running.inference = Endless()
    async with running:
        yield running


def unread(port: int) -> socket.socket:
    """A connection that requests a stream and reads nothing of it."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    client.sendall(REQUEST)
    return client


async def test_unread_streams_wait_and_then_end(running: Running) -> None:
    inference = running.inference
    port = int(running.url.rpartition(":")[2])
    clients = [unread(port) for _ in range(60)]
    async with httpx.AsyncClient(base_url=running.url, timeout=20) as http:
        await until(lambda: inference.running >= 50)
        while True:  # until all of them wait for their clients
            before = inference.sent
            await asyncio.sleep(0.2)
            if inference.sent == before or inference.cancelled:
                break
        assert inference.sent < 60 * (chunk_stream.MAX_UNREAD + 20_000)
        started_s = time.monotonic()
        answer = await http.post("/v1/translate", json={"texts": "hello"})
        assert answer.json()["data"][0]["text"] == "hello"
        assert time.monotonic() - started_s < 2
        await until(lambda: inference.running == 0)
        metrics = (await http.get("/metrics")).text
        assert 'triptych_connections_closed_total{reason="unread"} 60.0' in metrics
    for client in clients:
        client.close()


async def test_unread_grpc_stream_waits_and_then_ends(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    inference = running.inference
    async with grpc.aio.insecure_channel(running.target, options=SMALL_WINDOW) as channel:
        request = pb.TranslateRequest(texts=["a"], num_beams=1)
        call = TriptychStub(channel).TranslateStream(request)
        assert (await call.read()).text
        await until(lambda: inference.cancelled == 1)
        assert inference.running == 0
        other = await TriptychStub(channel).Translate(pb.TranslateRequest(texts=["hello"]))
        assert other.data[0].text == "hello"
        call.cancel()
    assert "Traceback" not in caplog.text


async def test_slowly_read_stream_goes_on(running: Running) -> None:
    body = {"texts": "a", "num_beams": 1, "stream": True}
    async with (
        httpx.AsyncClient(base_url=running.url) as http,
        http.stream("POST", "/v1/translate", json=body) as answer,
    ):
        started_s = time.monotonic()
        async for _ in answer.aiter_raw(10_000):
            await asyncio.sleep(0.01)
            if time.monotonic() - started_s > 3:
                break
        assert running.inference.cancelled == 0
    await until(lambda: running.inference.cancelled == 1)


async def test_client_that_leaves_while_a_message_is_sent_cancels_the_call() -> None:
    class Context:
        async def write(self, _: object) -> None:
            raise grpc.aio.InternalError('Failed "execute_batch"')

    with pytest.raises(asyncio.CancelledError):
        await _write(Context(), b"", timeout_s=5)
