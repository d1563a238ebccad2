"""What a client may send and leave unread before it has a key, over real sockets."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop
from starlette.types import Receive, Scope, Send

from serving.gateway.http import http_server
from serving.gateway.http.http_server import (
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    MAX_PIPELINED,
    MAX_URL_BYTES,
    Connections,
    HttpServer,
    _Response,
)
from serving.gateway.http.router import DISCONNECTED, FAILURE
from serving.gateway.observability.metrics import Metrics
from serving.ports import listening
from tests.serving.waiting import until

ALIVE = b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n"
LAST = ALIVE.replace(b"host", b"connection: close\r\nhost")
LARGE = 50_000_000


class App:
    """Returns the size of a body; `/large` returns many bytes, `/unread` reads nothing, `/wait`
    waits for the client to leave, `/work` works on a body until then.
    """

    def __init__(self) -> None:
        self.requests = 0
        self.disconnects = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.requests += 1
        size = 0
        if scope["path"] == "/unread" and scope["query_string"] == b"unauthorized":
            scope[FAILURE] = "unauthorized"
        while scope["path"] != "/unread":
            message = await receive()
            if message["type"] == "http.disconnect":
                self.disconnects += 1
                return
            if scope["path"] == "/wait":
                continue
            size += len(message["body"])
            if not message["more_body"]:
                break
        if scope["path"] == "/work":
            await scope[DISCONNECTED]
            self.disconnects += 1
            return
        body = b"x" * LARGE if scope["path"] == "/large" else str(size).encode()
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class Served:
    """The server on a port of this machine."""

    def __init__(self, port: int, app: App, server: HttpServer, metrics: Metrics) -> None:
        self.port, self.app, self.server, self.metrics = port, app, server, metrics

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def exchanged(self, *parts: bytes) -> bytes:
        """All that is answered to these bytes until the connection ends."""
        reader, writer = await self.connect()
        try:
            for part in parts:
                writer.write(part)
                await writer.drain()
        except ConnectionError:
            pass
        async with asyncio.timeout(20):
            try:
                return await reader.read()
            except ConnectionError:
                return b""
            finally:
                writer.close()

    @property
    def connections(self) -> int:
        return len(self.server.server_state.connections)

    def closed(self, reason: str) -> float:
        text = self.metrics.exposition().decode()
        label = f'triptych_connections_closed_total{{reason="{reason}"}} '
        lines = [line for line in text.splitlines() if line.startswith(label)]
        return float(lines[0].rpartition(" ")[2]) if lines else 0.0


@asynccontextmanager
async def served(**limits: Any) -> AsyncIterator[Served]:
    app, metrics = App(), Metrics()
    given = {"most": 100, "read_timeout_s": 30, "write_timeout_s": 30, "most_unread_bytes": 10**6}
    server = HttpServer(app, Connections(**given | limits, metrics=metrics))
    with listening("127.0.0.1", 0, "HTTP") as listener:
        task = asyncio.create_task(server.serve([listener]))
        await until(lambda: server.started)
        try:
            yield Served(listener.getsockname()[1], app, server, metrics)
        finally:
            server.should_exit = server.force_exit = True
            await task


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def error_of(answer: bytes) -> dict[str, str]:
    return json.loads(answer.partition(b"\r\n\r\n")[2])["error"]


def header_of(size: int) -> bytes:
    """A request of which the header block has about this size, in lines of a few kilobytes."""
    lines = [b"x-%d: %s" % (n, b"a" * 4000) for n in range(size // 4008)]
    return b"\r\n".join([b"GET / HTTP/1.1", b"host: a", *lines, b"connection: close", b"", b""])


async def test_ordinary_header_blocks_are_served() -> None:
    async with served() as server:
        assert status_of(await server.exchanged(header_of(60_000))) == 200


@pytest.mark.parametrize(
    "parts",
    [
        (header_of(2 * MAX_HEADER_BYTES),),
        (b"GET / HTTP/1.1\r\nx: ", *[b"a" * 10_000] * 8),  # one value, never complete
        (b"GET / HTTP/1.1\r\n", *[b"x: y\r\n" * 100] * 3),  # many headers
        (b"GET / HTTP/1.1\r\nx: " + b"a" * 70_000 + b"\r\n\r\n",),
        (b"GET / HTTP/1.1\r\n" + b"n" * 100_000,),  # a name
    ],
    ids=["block", "value", "count", "whole", "name"],
)
async def test_larger_header_blocks_get_431_and_the_end(parts: tuple[bytes, ...]) -> None:
    async with served() as server:
        answer = await server.exchanged(*parts)
        assert status_of(answer) == 431
        assert str(MAX_HEADER_BYTES) in error_of(answer)["message"]
        assert str(MAX_HEADERS) in error_of(answer)["message"]
        assert server.app.requests == 0
        assert server.closed("431") == 1


async def test_long_url_gets_414() -> None:
    async with served() as server:
        answer = await server.exchanged(b"GET /" + b"a" * 4 * MAX_URL_BYTES)
        assert status_of(answer) == 414
        assert str(MAX_URL_BYTES) in error_of(answer)["message"]
        fits = b"GET /%b HTTP/1.1\r\nconnection: close\r\n\r\n" % (b"a" * (MAX_URL_BYTES - 1))
        assert status_of(await server.exchanged(fits)) == 200


async def test_trailers_are_bounded_like_headers() -> None:
    head = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nt: "
    async with served() as server:
        assert status_of(await server.exchanged(head, b"a" * 500_000)) == 431


async def test_endless_header_costs_no_time_of_other_connections() -> None:
    async with served() as server:
        _reader, writer = await server.connect()
        writer.write(b"GET / HTTP/1.1\r\nx: ")
        started_s = time.perf_counter()
        for _ in range(200):  # 20 MB
            try:
                writer.write(b"a" * 100_000)
                await writer.drain()
            except ConnectionError:
                break
            probe = await server.exchanged(LAST)
            assert status_of(probe) == 200
        assert time.perf_counter() - started_s < 5
        writer.close()


async def test_pipelined_requests_are_bounded() -> None:
    async with served() as server:
        answer = await server.exchanged(ALIVE * (MAX_PIPELINED * 100))
        assert answer.count(b"200 OK") < 2 * MAX_PIPELINED
        assert server.app.requests < 2 * MAX_PIPELINED


async def test_a_few_pipelined_requests_are_served() -> None:
    async with served() as server:
        assert (await server.exchanged(ALIVE * 5 + LAST)).count(b"200 OK") == 6


async def test_what_is_not_http_gets_400() -> None:
    async with served() as server:
        answer = await server.exchanged(b"\x16\x03\x01\x02\x00")
        assert (status_of(answer), error_of(answer)["type"]) == (400, "malformed_body")


UPGRADES = [
    b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AA\r\n",
    b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n",
    b"upgrade: TLS/1.0, a/2\r\nconnection: keep-alive, Upgrade\r\n",
]


@pytest.mark.parametrize("upgrade", UPGRADES)
async def test_body_behind_an_offered_upgrade_is_read_in_each_form(upgrade: bytes) -> None:
    forms = {
        b"": (b"", 0),
        b"content-length: 5\r\n": (b"abcde", 5),
        b"transfer-encoding: chunked\r\n": (b"2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n", 5),
        b"content-length: 300000\r\n": (b"a" * 300_000, 300_000),
    }
    async with served() as server:
        for framing, (body, size) in forms.items():
            head = b"POST /a HTTP/1.1\r\nhost: a\r\n" + framing + upgrade + b"\r\n"
            whole = head + body
            cuts = [whole, head, whole[: len(head) + 1], whole[:-1], whole[:9]]
            for parts in ([cut, whole[len(cut) :]] for cut in cuts):
                answer = await server.exchanged(*parts, whole, LAST)
                assert answer.count(b"200 OK") == 3, (framing, parts[0][-20:])
                assert answer.count(b"\r\n\r\n%d" % size) >= 2


async def test_limits_hold_behind_an_offered_upgrade() -> None:
    head = b"POST / HTTP/1.1\r\nhost: a\r\n" + UPGRADES[0]
    async with served(read_timeout_s=0.5) as server:
        half = await server.exchanged(head + b"content-length: 20\r\n\r\nhalf")
        assert status_of(half) == 408
        odd = await server.exchanged(head + b"transfer-encoding: chunked\r\n\r\nxyz\r\n")
        assert status_of(odd) == 400


async def test_transfer_codings_other_than_chunked_are_refused() -> None:
    async with served() as server:
        head = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n"
        assert status_of(await server.exchanged(head)) == 501


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\nhost: ", 408),
        (b"POST / HTTP/1.1\r\ncontent-length: 20\r\n\r\nhalf", 408),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab", 408),
    ],
    ids=["header", "body", "chunk"],
)
async def test_request_that_never_ends_gets_408(sent: bytes, status: int) -> None:
    async with served(read_timeout_s=0.5) as server:
        answer = await server.exchanged(sent)
        assert (status_of(answer), server.closed("408")) == (status, 1)
        assert "in time" in error_of(answer)["message"]
        await until(lambda: not server.connections)


async def test_connection_without_a_request_is_closed() -> None:
    async with served(read_timeout_s=0.5) as server:
        assert await server.exchanged() == b""
        assert server.closed("idle") == 1


async def test_dripping_body_is_refused_and_a_slow_one_is_not() -> None:
    async with served(read_timeout_s=1) as server:
        reader, writer = await server.connect()
        writer.write(b"POST / HTTP/1.1\r\nconnection: close\r\ncontent-length: 16000\r\n\r\n")
        for _ in range(16):
            writer.write(b"a" * 1000)
            await asyncio.sleep(0.1)
        assert status_of(await reader.read()) == 200
        dripped, drip = await server.connect()
        drip.write(b"POST / HTTP/1.1\r\ncontent-length: 40000\r\n\r\n")
        async with asyncio.timeout(10):
            while not server.closed("408"):
                drip.write(b"a")
                await asyncio.sleep(0.1)
        assert status_of(await dripped.read()) == 408
        writer.close()
        drip.close()


async def test_unread_response_ends_the_connection() -> None:
    async with served(write_timeout_s=0.5) as server:
        _reader, writer = await server.connect()
        writer.write(b"GET /large HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(10):
            await until(lambda: server.closed("unread"))
            await until(lambda: not server.connections)
        writer.close()


async def test_slowly_read_response_is_complete() -> None:
    async with served(write_timeout_s=1) as server:
        reader, writer = await server.connect()
        writer.write(b"GET /large HTTP/1.1\r\nconnection: close\r\n\r\n")
        size = 0
        while part := await reader.read(1_000_000):
            size += len(part)
            await asyncio.sleep(0.01)
        assert size > LARGE
        writer.close()


async def test_new_connection_replaces_the_one_that_waited_longest() -> None:
    async with served(most=20) as server:
        held = [await server.connect() for _ in range(60)]
        for _, writer in held[30:]:
            writer.write(b"GET / HTTP/1.1\r\nhost: ")
        for _ in range(20):
            answer = await server.exchanged(LAST)
            assert status_of(answer) == 200
        assert server.connections <= 21
        assert server.closed("limit") >= 40
        assert await held[0][0].read() == b""
        for _, writer in held:
            writer.close()


async def test_rest_of_a_refused_body_is_read_up_to_a_limit() -> None:
    head = b"POST /unread HTTP/1.1\r\ncontent-length: 100000000\r\n\r\n"
    async with served(most_unread_bytes=1_000_000) as server:
        answer = await server.exchanged(head, *[b"a" * 100_000] * 100)
        assert answer == b"" or status_of(answer) == 200
        assert server.closed("body") == 1
    unauthorized = head.replace(b"/unread", b"/unread?unauthorized")
    async with served(most_unread_bytes=50_000_000) as server:
        await server.exchanged(unauthorized, *[b"a" * 100_000] * 100)
        assert server.closed("body") == 1
    small = b"POST /unread HTTP/1.1\r\ncontent-length: 500000\r\n\r\n" + b"a" * 500_000
    async with served(most_unread_bytes=1_000_000) as server:
        assert (await server.exchanged(small, LAST)).count(b"200 OK") == 2


async def test_limits_of_one_request_do_not_add_up_over_a_connection() -> None:
    async with served() as server:
        reader, writer = await server.connect()
        for _ in range(10):
            writer.write(header_of(40_000).replace(b"connection: close\r\n", b""))
            assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(1)
        writer.close()


def test_limits_are_those_that_are_documented() -> None:
    assert (MAX_HEADER_BYTES, MAX_URL_BYTES) == (65_536, 16_384)
    assert http_server.MIN_BYTES_PER_S == 1000


async def test_bodies_in_tiny_chunks_are_refused() -> None:
    head = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
    async with served() as gateway:
        answer = await gateway.exchanged(head, b"1\r\na\r\n" * 100_000)
        assert status_of(answer) == 400
        assert "chunks" in error_of(answer)["message"]
        larger = b"10\r\n0123456789abcdef\r\n" * 20_000 + b"0\r\n\r\n"
        few = b"1\r\na\r\n" * 1000 + b"0\r\n\r\n"
        for body, size in ((larger, 320_000), (few, 1000)):
            closing = head.replace(b"host", b"connection: close\r\nhost")
            answer = await gateway.exchanged(closing, body)
            assert answer.endswith(b"\r\n\r\n%d" % size)


async def test_bodies_that_nothing_reads_do_not_stop_others() -> None:
    head = b"POST /unread HTTP/1.1\r\nhost: a\r\ncontent-length: 900000000\r\n\r\n"
    received = 0

    async def pour(gateway: Served) -> None:
        nonlocal received
        _, writer = await gateway.connect()
        writer.write(head)
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(bytes(100_000))
                await writer.drain()
                received += 100_000

    async with served(most_unread_bytes=10**9) as gateway:
        pouring = [asyncio.create_task(pour(gateway)) for _ in range(3)]
        await asyncio.sleep(0.5)
        for task in pouring:
            task.cancel()
        await asyncio.wait(pouring)
        assert 0 < received < 100_000_000  # three sockets with their buffers, ten reads each


def test_response_to_a_connection_that_was_just_ended_is_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def exchange() -> None:
        async with served() as gateway:
            await gateway.exchanged(ALIVE * MAX_PIPELINED * 3)

    uvloop.run(exchange())  # its transports raise when they are written after their end
    assert "Exception" not in caplog.text


async def test_disconnect_ends_the_request_that_runs_before_pipelined_ones() -> None:
    waiting = b"GET /wait HTTP/1.1\r\nhost: a\r\n\r\n"
    async with served() as gateway:
        _, writer = await gateway.connect()
        writer.write(waiting + ALIVE)
        await until(lambda: gateway.app.requests == 1)
        writer.close()
        await until(lambda: gateway.app.disconnects == 1)


@pytest.mark.parametrize("size", [0, 10, 100_000, 1_000_000])
async def test_disconnect_is_noted_behind_a_body_of_any_size(size: int) -> None:
    async with served() as gateway:
        _, writer = await gateway.connect()
        writer.write(b"POST /work HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % size)
        writer.write(b"a" * size)
        await writer.drain()
        await until(lambda: gateway.app.requests == 1)
        writer.close()
        await until(lambda: gateway.app.disconnects == 1)


class Cycle:
    """A request and its transport, which records what is written at once."""

    def __init__(self) -> None:
        self.transport, self.response_started = self, False
        self.written: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def writelines(self, parts: tuple[bytes, ...]) -> None:
        self.written.append(b"".join(parts))

    def close(self) -> None:
        self.is_closed = True


def test_head_of_a_response_is_sent_with_its_first_part() -> None:
    cycle: Any = Cycle()
    response = _Response(cycle)
    response.write(b"100 ")
    cycle.response_started = True
    for part in (b"head ", b"one ", b"two "):
        response.write(part)
    response.flush()
    assert cycle.written == [b"100 ", b"head one ", b"two "]


def test_head_without_a_body_is_sent_before_the_connection_is_closed() -> None:
    cycle: Any = Cycle()
    cycle.response_started = True
    response = _Response(cycle)
    response.write(b"head ")
    assert not cycle.written
    response.close()
    assert cycle.written == [b"head "]
    assert cycle.is_closed


async def test_responses_without_a_body_are_sent_and_the_next_request_is_served() -> None:
    head = b"HEAD / HTTP/1.1\r\nhost: a\r\n\r\n"
    whole = b"POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 2\r\n"
    async with served() as server:
        answer = await server.exchanged(head, whole + b"connection: close\r\n\r\n", b"ab")
        assert answer.count(b"HTTP/1.1 200 OK") == 2
        assert answer.endswith(b"\r\n\r\n2")
