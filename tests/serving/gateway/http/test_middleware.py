"""The outermost layer over an application that a test makes itself: ids, limits, failures."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inference.errors import Overloaded, PayloadTooLarge, ServingError
from serving.gateway.admission.admission import Reserve
from serving.gateway.admission.auth import KEY, ApiKey
from serving.gateway.http.middleware import FAILURE, Middleware
from serving.gateway.observability.metrics import Metrics
from serving.gateway.observability.trace_context import Tracer

LIMIT = 10
KEY_OF_BEFORE = ApiKey(name="before", sha256="0" * 64)


class Layer:
    """A middleware over an application, and what it has reserved of a body."""

    def __init__(self, app: ASGIApp, free: int = 100) -> None:
        self.reserved: list[int] = []
        self.is_released = False
        self._free = free
        self._layer = Middleware(app, Metrics(), LIMIT, lambda: self, self._render, Tracer())

    def __enter__(self) -> Reserve:
        return self._reserve

    def __exit__(self, *raised: object) -> None:
        self.is_released = True

    def _reserve(self, size: int) -> None:
        self.reserved.append(size)
        if size > self._free:
            raise Overloaded("full")

    def _render(self, scope: Scope, error: ServingError) -> PlainTextResponse:
        return PlainTextResponse(error.message, error.http_status)

    async def post(
        self, parts: Sequence[bytes] = (b"",), headers: dict[str, str] | None = None
    ) -> list[Message]:
        """What is sent for a request with a body in parts."""
        sent: list[Message] = []
        left = list(parts)

        async def receive() -> Message:
            return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

        async def send(message: Message) -> None:
            sent.append(message)

        raw = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        scope = {"type": "http", "method": "POST", "path": "/v1/x", "headers": raw}
        await self._layer(scope, receive, send)
        return sent


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Sends back the body, once it has been read."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message["body"], message["more_body"]
    await PlainTextResponse(body)(scope, receive, send)


def failing(error: Exception, *, after_start: bool = False) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if after_start:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise error

    return app


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "serving")
    return caplog


def recorded(log: pytest.LogCaptureFixture) -> tuple[int, str | None]:
    """Status and error of the one request that was logged."""
    (found,) = [one for one in log.records if one.message == "answered"]
    return found.status, found.error


def starts(sent: list[Message]) -> list[tuple[int, dict[bytes, bytes]]]:
    return [(m["status"], dict(m["headers"])) for m in sent if m["type"] == "http.response.start"]


async def test_request_id_is_the_clients_or_a_new_one(log: pytest.LogCaptureFixture) -> None:
    ((_, given),) = starts(await Layer(echo).post(headers={"x-request-id": "mine"}))
    ((_, made),) = starts(await Layer(echo).post(headers={"x-request-id": "a\nb"}))
    assert given[b"x-request-id"] == b"mine"
    assert len(made[b"x-request-id"]) == 32
    ids = [one.request_id for one in log.records if one.message == "answered"]
    assert ids == ["mine", made[b"x-request-id"].decode()]


async def test_body_that_is_declared_too_large_is_not_read() -> None:
    read: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        with pytest.raises(PayloadTooLarge):
            read.append(await receive())
        await PlainTextResponse()(scope, receive, send)

    layer = Layer(app)
    await layer.post([b"x"], {"content-length": "11"})
    assert (read, layer.reserved) == ([], [])


async def test_body_that_grows_too_large_is_refused_at_the_part_that_is_too_much() -> None:
    read: list[bytes] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        read.append((await receive())["body"])
        with pytest.raises(PayloadTooLarge):
            await receive()
        await PlainTextResponse()(scope, receive, send)

    await Layer(app).post([b"x" * LIMIT, b"y"])
    assert read == [b"x" * LIMIT]


async def test_declared_size_is_reserved_first_then_what_has_arrived() -> None:
    layer = Layer(echo)
    await layer.post([b"abc", b"de"], {"content-length": "5"})
    assert layer.reserved == [5, 0, 3, 5]
    assert layer.is_released


async def test_bytes_are_released_after_a_refusal(log: pytest.LogCaptureFixture) -> None:
    layer = Layer(failing(ZeroDivisionError()))
    await layer.post()
    assert layer.is_released
    full = Layer(echo, free=2)
    await full.post([b"abc"])
    assert (full.reserved, full.is_released) == ([0, 0, 3], True)


async def test_bug_is_a_500_with_the_requests_id(log: pytest.LogCaptureFixture) -> None:
    sent = await Layer(failing(ZeroDivisionError("secret"))).post(headers={"x-request-id": "mine"})
    ((status, headers),) = starts(sent)
    assert (status, headers[b"x-request-id"]) == (500, b"mine")
    assert b"secret" not in b"".join(message.get("body", b"") for message in sent)
    assert recorded(log) == (500, "internal")


async def test_bug_after_the_headers_sends_no_others(log: pytest.LogCaptureFixture) -> None:
    sent = await Layer(failing(ZeroDivisionError(), after_start=True)).post()
    assert len(sent) == len(starts(sent)) == 1
    assert recorded(log) == (200, "internal")


@pytest.mark.parametrize("after_start", [False, True])
async def test_disconnect_is_recorded_as_cancelled(
    log: pytest.LogCaptureFixture, after_start: bool
) -> None:
    sent = await Layer(failing(ClientDisconnect(), after_start=after_start)).post()
    assert len(sent) == after_start
    assert recorded(log) == (200 if after_start else 0, "cancelled")


async def test_response_that_is_never_begun_is_cancelled(log: pytest.LogCaptureFixture) -> None:
    async def silent(scope: Scope, receive: Receive, send: Send) -> None:
        """The client left before there was anything to send."""

    assert await Layer(silent).post() == []
    assert recorded(log) == (0, "cancelled")


async def test_failure_of_a_stream_is_recorded_by_its_name(log: pytest.LogCaptureFixture) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse("data")(scope, receive, send)
        scope[FAILURE] = "unavailable"

    await Layer(app).post()
    assert recorded(log) == (200, "unavailable")


async def test_time_limit_that_is_none_is_refused_before_the_application() -> None:
    layer = Layer(failing(AssertionError("it was called")))
    ((status, headers),) = starts(await layer.post(headers={"x-request-timeout": "soon"}))
    assert status == 422
    assert b"x-request-id" in headers


async def test_key_of_an_earlier_request_on_the_connection_is_forgotten() -> None:
    KEY.set(KEY_OF_BEFORE)
    seen: list[ApiKey | None] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(KEY.get())
        await PlainTextResponse()(scope, receive, send)

    await Layer(app).post()
    assert seen == [None]
