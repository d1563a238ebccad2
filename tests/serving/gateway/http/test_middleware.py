"""What lies around the routes: ids, limits, origins."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import httpx
import pytest
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inference.errors import Overloaded, PayloadTooLarge, ServingError
from serving.gateway.admission.admission import Reserve
from serving.gateway.admission.auth import KEY, ApiKey
from serving.gateway.http.middleware import Hosts, Middleware
from serving.gateway.http.router import FAILURE
from serving.gateway.observability.metrics import Metrics
from serving.gateway.observability.trace_context import Tracer
from tests.serving.gateway.conftest import Gateway, MakeGateway, error_of

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
    assert given[b"x-request-id"] == b"mine"
    made = []
    for refused in ("a\nb", "a b", "x" * 129):
        ((_, headers),) = starts(await Layer(echo).post(headers={"x-request-id": refused}))
        made.append(headers[b"x-request-id"].decode())
    assert [len(one) for one in made] == [32] * 3
    ids = [one.request_id for one in log.records if one.message == "answered"]
    assert ids == ["mine", *made]


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


BODY = {"texts": "hello"}
RIGHT_KEY = {"authorization": "Bearer secret"}


async def sent(gateway: Gateway, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await gateway.http.post("/v1/translate", json=BODY, headers=named)


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "localhost:8080", "LOCALHOST", "app.localhost:1", "127.0.0.1:8080"),
        *("[::1]:8080", "[fd00::1]", "10.1.2.3", "gateway:8080"),
    ],
)
async def test_addresses_and_local_names_are_served(gateway: Gateway, host: str) -> None:
    assert (await sent(gateway, host=host)).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example"),
        *(
            "127.0.0.1@evil.example",
            "evil.example.",
            "1.2.3",
            "evil%2eexample",
            "[::1].evil.example",
        ),
    ],
)
async def test_other_names_are_refused_on_every_path(gateway: Gateway, host: str) -> None:
    response = await sent(gateway, host=host)
    assert (response.status_code, error_of(response)["type"]) == (421, "unknown_host")
    assert "--allowed-hosts" in error_of(response)["message"]
    for path in ("/", "/v1/models", "/metrics", "/no/such"):
        assert (await gateway.http.get(path, headers={"host": host})).status_code == 421
    assert not gateway.inference.calls


async def test_configured_names_are_served(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(
        allowed_hosts="Models.example.org,*.svc.cluster.local",
        public_url="https://public.example.org/models",
    )
    for host in ("models.example.org:8080", "gateway.default.svc.cluster.local"):
        assert (await sent(gateway, host=host)).status_code == 200
    assert (await sent(gateway, host="public.example.org")).status_code == 200
    for host in ("example.org", "svc.cluster.local", "other.models.example.org"):
        assert (await sent(gateway, host=host)).status_code == 421


@pytest.mark.parametrize(
    ("settings", "status"),
    [
        ({"host": "0.0.0.0"}, 421),
        ({"host": "127.0.0.1", "api_key": "secret"}, 421),
        ({"host": "0.0.0.0", "api_key": "secret"}, 200),
    ],
    ids=["keyless", "loopback", "key"],
)
async def test_checked_on_loopback_or_without_keys(
    make_gateway: MakeGateway, settings: dict[str, str], status: int
) -> None:
    gateway = make_gateway(**settings)
    assert (await sent(gateway, host="models.example.org", **RIGHT_KEY)).status_code == status


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:3000"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site", "origin": "http://localhost:3000"},
    ],
)
async def test_posts_of_other_sites_are_refused(gateway: Gateway, headers: dict[str, str]) -> None:
    response = await sent(gateway, host="localhost:8080", **headers)
    assert (response.status_code, error_of(response)["type"]) == (403, "cross_site")
    assert "--cors-allow-origin" in error_of(response)["message"]
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    files = [("images", ("x.png", b"x"))]
    await gateway.post("/v1/caption", files=files, headers=named, status=403)
    await gateway.post("/translate", data={"q": "a"}, headers=named, status=403)
    assert not gateway.inference.calls
    assert (await gateway.http.get("/v1/models", headers=named)).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://localhost:8080", "sec_fetch_site": "same-origin"},
        {"origin": "http://localhost:8080"},
        {"origin": "https://public.example.org"},
        {"origin": "https://elsewhere.example", "sec_fetch_site": "same-origin"},  # a proxy's Host
        {"sec_fetch_site": "none"},
        {"origin": "https://app.example"},
        {},
    ],
)
async def test_own_page_allowed_sites_and_programs_are_served(
    make_gateway: MakeGateway, headers: dict[str, str]
) -> None:
    gateway = make_gateway(
        cors_allow_origin="https://app.example", public_url="https://public.example.org:443/x"
    )
    assert (await sent(gateway, host="localhost:8080", **headers)).status_code == 200


async def test_any_site_may_send_where_cors_allows_all(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(cors_allow_origin="*")
    assert (await sent(gateway, origin="https://app.example")).status_code == 200


def test_request_without_a_host_is_no_browsers() -> None:
    assert Hosts([]).has("")
    assert not Hosts([]).has("[")
