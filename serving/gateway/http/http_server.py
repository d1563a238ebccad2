"""uvicorn as the gateway runs it: bounds on what a client sends and leaves unread.

uvicorn bounds neither headers nor the number and duration of connections, and httptools joins the
pieces of one header by copying, so that a long one takes quadratic time.

At the cap a new connection replaces the one that has waited longest for its client, so a flood of
slow ones starves no probe. A share by address would be wrong behind a proxy.

The event loop reads about 256 KB of a connection at a time, and copies them: reads of a hundred
large bodies in a row would delay whatever else waits for the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httptools
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from inference.errors import Unauthorized, WrongKey
from serving.gateway.http.router import DISCONNECTED, FAILURE
from serving.gateway.observability.metrics import Metrics

FREE_BYTES = 250_000
"""Of each body, read without a pause."""
BYTES_PER_S = 200_000_000
"""Of large bodies together: a read of 256 KB every 1.3 ms."""
_DISCARD_PAUSE_S = 0.02
"""Between two reads of bodies that nothing needs, of all connections: libuv reads up to 32 times
before it turns to another one, so that a hundred fast clients would stop the event loop."""


class ReadingPace:
    """When the next connection may read, over all connections of an event loop."""

    def __init__(self) -> None:
        self._next_s = 0.0

    def reserve(self, size: int, now_s: float) -> float:
        """Take a place behind those that wait.

        Args:
            size: Bytes that were read.
            now_s: Time of the event loop.

        Returns:
            Seconds until the next read.
        """
        self._next_s = max(self._next_s, now_s) + size / BYTES_PER_S
        return self._next_s - now_s


class PacedFlow(FlowControl):
    """uvicorn's flow control of one connection, which reads on in its turn.

    Args:
        pace: Shared by all connections.
    """

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, pace: ReadingPace
    ) -> None:
        super().__init__(transport)
        self._loop = loop
        self._pace = pace
        self._is_waiting = False
        self.paced_bytes = 0
        """What the last read took of a large body."""

    def resume_reading(self) -> None:
        """Read on, after a large body's read when it is this connection's turn."""
        if not self.read_paused or self._is_waiting:
            return
        if not self.paced_bytes:
            super().resume_reading()
            return
        self._is_waiting = True
        wait_s = self._pace.reserve(self.paced_bytes, self._loop.time())
        self.paced_bytes = 0
        self._loop.call_later(wait_s, self._read_on)

    def _read_on(self) -> None:
        self._is_waiting = False
        if not self._transport.is_closing():
            super().resume_reading()


@dataclass
class Connections:
    """All open connections of a gateway's process.

    Args:
        most: At once. A further one replaces the connection that has waited for its client longest.
        read_timeout_s: For a header; between two parts of a body (`MIN_BYTES_PER_S`).
        write_timeout_s: For the client to read what was sent (`MIN_BYTES_PER_S`).
        most_unread_bytes: Of a body whose request has been answered.
        metrics: Closed connections are counted there.
    """

    most: int
    read_timeout_s: float
    write_timeout_s: float
    most_unread_bytes: int
    metrics: Metrics
    waiting: dict[LimitedProtocol, None] = field(default_factory=dict)
    """Those that wait for their client to send, the longest first."""
    discarding: int = 0
    """Those that pause between two reads of a body that nothing needs."""
    pace: ReadingPace = field(default_factory=ReadingPace)

    def check(self, connections: Iterable[Any], now_s: float) -> None:
        """Close what has stalled; call it every second.

        Args:
            now_s: Time of the event loop.
        """
        for connection in list(connections):
            connection.check(now_s)

    def begin_pause(self) -> float:
        """Count a connection that pauses; for so many seconds."""
        self.discarding += 1
        return _DISCARD_PAUSE_S * self.discarding

    def make_room(self, count: int) -> bool:
        """Close one waiting connection if there are too many; False if none waits.

        Args:
            count: Those that are open.
        """
        if count <= self.most:
            return True
        oldest = next(iter(self.waiting), None)
        if oldest is None:
            return False
        self.metrics.closed_connections.labels("limit").inc()
        oldest.abort()
        self.waiting.pop(oldest, None)
        return True


MAX_HEADER_BYTES = 65_536
"""Of the header block of one request, and of a body's trailers."""
MAX_URL_BYTES = 16_384
MAX_HEADERS = 256
MAX_PIPELINED = 16
"""Requests of one connection that are received and not yet answered."""
MIN_BYTES_PER_S = 1000
"""A body, or a response, that moves more slowly than this is a stalled one."""
MAX_UNAUTHORIZED_BYTES = 1_000_000
"""Of a body without a key that are read after the response, before the connection is closed."""
MOST_TINY_PARTS = 2048
"""Parts of a body in one read whose mean size may be below `TINY_PART_BYTES`: each costs a call."""
TINY_PART_BYTES = 8
_LINGER_S = 1.0
"""After a refusal: a client that still sends can read the response meanwhile."""


class LimitedProtocol(HttpToolsProtocol):
    """One connection.

    Args:
        shared: The limits, and all connections.
    """

    flow: PacedFlow

    def __init__(self, *, shared: Connections, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._shared = shared
        self._running: RequestResponseCycle | None = None
        self._response: _Response
        self._refusal: tuple[int, str, str] | None = None
        """Status, error type and message of the response that ends the connection."""
        self._ends_s: float | None = None
        """Set by a refusal: when the connection is closed."""
        self._is_repeating = False
        """Whether what is parsed is a header block that was parsed before."""
        self._in_body = False
        self._head_bytes = 0
        """Of the header block so far, as parsed."""
        self._unparsed_bytes = 0
        """Received since a header block or a part of a body was complete."""
        self._body_bytes = 0
        """Received of the current body."""
        self._parts = self._part_bytes = 0
        """Parts of bodies in what was received last, and their bytes."""
        self._waits_since: tuple[float, int] = (0.0, 0)
        """Since when the client must send, and `_body_bytes` at that time."""
        self._unread_since: tuple[float, int] | None = None
        """Since when the client must read, and the bytes that were buffered then."""

    @property
    def _is_busy(self) -> bool:
        """Whether a request has not been answered."""
        return bool(self.pipeline) or (self.cycle is not None and not self.cycle.response_complete)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection if there is room."""
        super().connection_made(transport)
        self.flow = PacedFlow(transport, self.loop, self._shared.pace)
        if not self._shared.make_room(len(self.connections)):
            self._shared.metrics.closed_connections.labels("limit").inc()
            transport.abort()
            return
        self._wait_for_client()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._shared.waiting.pop(self, None)
        self._disconnect()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what arrived, unless it exceeds a limit."""
        if self._ends_s is not None:
            return
        self._unset_keepalive_if_required()
        self._unparsed_bytes += len(data)
        self._parts = self._part_bytes = 0
        if self._in_body:
            self._body_bytes += len(data)
            if self._body_bytes > FREE_BYTES:
                self.flow.paced_bytes = len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self._refuse(*(self._refusal or (400, "malformed_body", "this is not HTTP/1.1")))
            return
        if self._unparsed_bytes > MAX_HEADER_BYTES:
            self._refuse(*_header_refusal())
        elif self._in_body and not self._is_busy:
            self._discard()

    def _feed(self, data: bytes) -> None:
        """Parse, also the body of a request that offers an upgrade (RFC 9110, section 7.8).

        The parser ends such a request behind its header block, and then parses nothing. Another one
        goes on, which is given what of the block decides where the body ends.
        """
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self._is_repeating = True
                try:
                    self.parser.feed_data(_frame_header(self.scope["http_version"], self.headers))
                finally:
                    self._is_repeating = False
            else:
                return

    def _discard(self) -> None:
        """Read the rest of a body whose request has been answered, slowly and not without end."""
        if self._body_bytes > self._most_discarded:
            self._close("body")
        elif not self.flow.read_paused:
            self.flow.pause_reading()
            self.loop.call_later(self._shared.begin_pause(), self._go_on_reading)

    def _go_on_reading(self) -> None:
        self._shared.discarding -= 1
        if not self.transport.is_closing():
            self.flow.resume_reading()

    @property
    def _most_discarded(self) -> int:
        """Bytes of a body that are read although its request has been answered.

        Many clients read no response before they have sent all of their request.
        """
        is_refused = self.cycle.scope.get(FAILURE) in (Unauthorized.wire, WrongKey.wire)
        limit = self._shared.most_unread_bytes
        return min(MAX_UNAUTHORIZED_BYTES, limit) if is_refused else limit

    def on_message_begin(self) -> None:
        """See `HttpToolsProtocol`."""
        if self._is_repeating:
            return
        self._head_bytes = 0
        super().on_message_begin()
        self.scope[DISCONNECTED] = self.loop.create_future()  # type: ignore[literal-required]

    def on_url(self, url: bytes) -> None:
        """Count the URL, of which this is a part."""
        if self._is_repeating:
            return
        if len(self.url) + len(url) > MAX_URL_BYTES:
            problem = f"the URL has more than {MAX_URL_BYTES} bytes: send the text in the body"
            self._raise(414, "payload_too_large", problem)
        self._head_bytes += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header, or a trailer."""
        if self._is_repeating:
            return
        self._head_bytes += len(name) + len(value) + len(b": \r\n")
        if self._head_bytes > MAX_HEADER_BYTES or len(self.headers) >= MAX_HEADERS:
            self._raise(*_header_refusal())
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the request."""
        if self._is_repeating:
            return
        _check_transfer_codings(self.headers, self._raise)
        if len(self.pipeline) >= MAX_PIPELINED:
            self._raise(400, "malformed_body", f"over {MAX_PIPELINED} requests are not answered")
        self._unparsed_bytes = self._body_bytes = 0
        self._in_body = True
        self._wait_for_client()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """See `HttpToolsProtocol`; refuse a body in tiny parts."""
        self._unparsed_bytes = 0
        self._parts += 1
        self._part_bytes += len(body)
        if self._parts > MOST_TINY_PARTS and self._part_bytes < TINY_PART_BYTES * self._parts:
            problem = f"the body's chunks have less than {TINY_PART_BYTES} bytes: send larger ones"
            self._raise(400, "malformed_body", problem)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The client has sent all of a request."""
        if self.parser.should_upgrade():
            return  # its body follows
        self._unparsed_bytes = 0
        self._in_body = False
        if self._is_busy:
            self._shared.waiting.pop(self, None)
        else:
            self._wait_for_client()
        super().on_message_complete()
        if not self.pipeline:  # uvicorn pauses behind a large body, where no disconnect is noted
            self.flow.resume_reading()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running, self._response = cycle, _Response(cycle)
        cycle.transport = self._response  # type: ignore[assignment]
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """The next request may come."""
        self._response.flush()
        super().on_response_complete()
        if not self._is_busy and not self.transport.is_closing():
            self._wait_for_client()

    def check(self, now_s: float) -> None:
        """Close the connection if its client neither sends nor reads."""
        if self.transport.is_closing() and not self.transport.get_write_buffer_size():
            return
        if self._ends_s is not None:
            if now_s > self._ends_s:
                self.abort()
        elif self._is_unread(now_s):
            self._close("unread")
        elif self._in_body:
            self._check_body(now_s)
        elif not self._is_busy and now_s - self._waits_since[0] > self._shared.read_timeout_s:
            if self._unparsed_bytes:
                self._refuse(408, "invalid_request", "the request's header did not arrive in time")
            else:
                self._close("idle")

    def _check_body(self, now_s: float) -> None:
        since_s, before = self._waits_since
        enough = MIN_BYTES_PER_S * self._shared.read_timeout_s
        if self.flow.read_paused or self._body_bytes - before >= enough:
            self._waits_since = now_s, self._body_bytes
        elif now_s - since_s > self._shared.read_timeout_s:
            message = "the request's body did not arrive in time: send it without pauses"
            self._refuse(408, "invalid_request", message)

    def _is_unread(self, now_s: float) -> bool:
        """Whether the client has not read for too long."""
        size = self.transport.get_write_buffer_size()
        enough = MIN_BYTES_PER_S * self._shared.write_timeout_s
        if not size:
            self._unread_since = None
        elif self._unread_since is None or size <= self._unread_since[1] - enough:
            self._unread_since = now_s, size
        else:
            return now_s - self._unread_since[0] > self._shared.write_timeout_s
        return False

    def _wait_for_client(self) -> None:
        self._waits_since = self.loop.time(), self._body_bytes
        self._shared.waiting.pop(self, None)
        self._shared.waiting[self] = None

    def _raise(self, status: int, kind: str, message: str) -> None:
        """End the parsing of what was received; `data_received` answers."""
        self._refusal = status, kind, message
        raise ValueError(message)

    def _refuse(self, status: int, kind: str, message: str) -> None:
        """Answer and close the connection; what still arrives is discarded for a moment."""
        self._shared.metrics.closed_connections.labels(str(status)).inc()
        self._ends_s = self.loop.time() + _LINGER_S
        self._shared.waiting.pop(self, None)
        is_answered = self._in_body and self.cycle.response_started
        is_other = self._is_busy and (self.pipeline or not self._in_body)
        if is_answered or is_other:  # a further response would be taken for another request's
            self.abort()
            return
        if self._is_busy:
            _end(self.cycle)
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self.transport.write(_response(status, kind, message))
            self.transport.write_eof()

    def _close(self, reason: str) -> None:
        self._shared.metrics.closed_connections.labels(reason).inc()
        self.abort()

    def abort(self) -> None:
        """Close the connection at once; its requests end as if the client had closed it."""
        self._disconnect()
        self.transport.abort()

    def _disconnect(self) -> None:
        """End all requests of the connection; uvicorn ends only the one that came last."""
        for cycle in (self._running, *(cycle for cycle, _ in self.pipeline)):
            if cycle is not None and not cycle.response_complete:
                _end(cycle)


class _Response:
    """The transport of one response: its head is sent with the first part of its body.

    uvicorn writes them apart, and each write is a system call, and a packet for the client.
    """

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle, self._transport = cycle, cycle.transport
        self._head: bytes | None = None
        """Not sent yet; empty once it is."""

    def write(self, data: bytes) -> None:
        """Send data, unless it is the head; `100 Continue` comes before that."""
        if self._head is None and self._cycle.response_started:
            self._head = data
        elif self._head:
            self._transport.writelines((self._head, data))
            self._head = b""
        else:
            self._transport.write(data)

    def flush(self) -> None:
        if self._head:
            self._transport.write(self._head)
            self._head = b""

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()


def _frame_header(version: str, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """A header block with what decides where the body ends, and without an upgrade."""
    kept = [b"POST / HTTP/" + version.encode() + b"\r\n"]
    for name, value in headers:
        if name == b"connection":
            tokens = [token for token in value.split(b",") if token.strip().lower() != b"upgrade"]
            value = b",".join(tokens)
        if name in (b"connection", b"content-length", b"transfer-encoding"):
            kept.append(name + b": " + value + b"\r\n")
    return b"".join((*kept, b"\r\n"))


def _check_transfer_codings(
    headers: Sequence[tuple[bytes, bytes]], refuse: Callable[[int, str, str], None]
) -> None:
    """Refuse transfer codings besides chunked, which would reach a route undecoded."""
    for name, value in headers:
        codings = {coding.strip().lower() for coding in value.split(b",")}
        if name == b"transfer-encoding" and codings - {b"chunked", b"identity", b""}:
            problem = "the only transfer-encoding is chunked: send content-encoding: gzip instead"
            refuse(501, "unsupported_media_type", problem)


def _end(cycle: RequestResponseCycle) -> None:
    """Note that the client of a request has disconnected."""
    cycle.disconnected = True
    cycle.message_event.set()
    disconnected = cycle.scope[DISCONNECTED]  # type: ignore[literal-required]
    if not disconnected.done():
        disconnected.set_result(None)


def _header_refusal() -> tuple[int, str, str]:
    limit = f"at most {MAX_HEADERS} headers of {MAX_HEADER_BYTES} bytes in all are taken"
    return 431, "payload_too_large", f"{limit}: send fewer, or shorter cookies"


def _response(status: int, kind: str, message: str) -> bytes:
    body = json.dumps({"error": {"type": kind, "message": message}}).encode()
    head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
    return STATUS_LINE[status] + head % len(body) + body


FLUSH_S = 5
"""Time to write the responses of requests that have ended."""
_TICKS = 10
"""Of uvicorn's main loop, in a second."""


class HttpServer(uvicorn.Server):
    """uvicorn with limits on connections, and without its signal handlers, which raise the signal
    again once it has stopped.
    """

    def __init__(self, app: Any, connections: Connections) -> None:
        protocol: Any = partial(LimitedProtocol, shared=connections)
        config = uvicorn.Config(
            app,
            http=protocol,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            timeout_graceful_shutdown=FLUSH_S,
        )
        super().__init__(config)
        self._connections = connections

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the gateway."""
        yield

    async def on_tick(self, counter: int) -> bool:
        """Close stalled connections, once a second."""
        if counter % _TICKS == 0:
            now_s = asyncio.get_running_loop().time()
            self._connections.check(self.server_state.connections, now_s)
        return await super().on_tick(counter)
