"""`Client` and `AsyncClient` against a transport that responds as a gateway does."""

from __future__ import annotations

import asyncio
import inspect
import json
import random
import ssl
from collections.abc import Callable
from typing import Any

import httpx
import pytest

import triptych
from triptych import errors
from triptych.client.base_client import Retries
from triptych.errors import (
    ConnectionFailed,
    InvalidRequest,
    Overloaded,
    ServerError,
    Timeout,
    TriptychError,
    Unavailable,
)
from triptych.tasks.translate import TranslateResponse

URL = "http://gateway:8080"
QUICK = Retries(attempts=3, first_wait_s=0.0)
TRANSLATED = {
    "model": "opus",
    "data": [{"index": 0, "text": "Hello.", "score": -1}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2},
}
Handler = Callable[[httpx.Request], httpx.Response]


class Gateway:
    """Responds from a list, in order; keeps the requests."""

    def __init__(self, *responses: httpx.Response | Exception) -> None:
        self.responses = list(responses)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        response = self.responses.pop(0)
        if isinstance(response, Exception):
            raise response
        return response

    @property
    def body(self) -> Any:
        return json.loads(self.requests[-1].content)


class Blocking:
    """Either client behind blocking calls, so that one test holds both to one behaviour."""

    def __init__(self, kind: type, handler: Handler, **settings: Any) -> None:
        settings = {"retries": QUICK, **settings}
        self._client = kind(URL, transport=httpx.MockTransport(handler), **settings)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            response = method(*args, **kwargs)
            return asyncio.run(response) if inspect.isawaitable(response) else response

        return call


@pytest.fixture(params=[triptych.Client, triptych.AsyncClient])
def connect(request: pytest.FixtureRequest) -> Callable[..., Blocking]:
    return lambda handler, **settings: Blocking(request.param, handler, **settings)


def ok(body: object) -> httpx.Response:
    return httpx.Response(200, json=body)


def failed(status: int, type_: str = "x", **headers: str) -> httpx.Response:
    body = {"error": {"type": type_, "message": "what, why", "field": "texts"}}
    return httpx.Response(status, json=body, headers=headers)


def test_translate_sends_what_was_given_and_nothing_else(connect: Any) -> None:
    gateway = Gateway(ok(TRANSLATED))
    response = connect(gateway).translate("Hola.", source="es", num_beams=4)
    assert str(gateway.requests[0].url) == f"{URL}/v1/translate"
    assert gateway.requests[0].method == "POST"
    assert gateway.body == {"texts": ["Hola."], "source": "es", "num_beams": 4}
    assert isinstance(response, TranslateResponse)
    assert response.data[0].text == "Hello."
    assert response.usage.prompt_tokens == 3


def test_models_sends_get(connect: Any) -> None:
    gateway = Gateway(ok({"object": "list", "data": []}))
    assert connect(gateway).models().data == []
    assert (gateway.requests[0].method, gateway.requests[0].url.path) == ("GET", "/v1/models")


INFO = {"name": "kitchen", "source": "es", "size": 1, "modified": 1.5}


def test_glossaries_have_methods(connect: Any) -> None:
    gateway = Gateway(ok(INFO), ok({**INFO, "terms": {"a": "b"}}), ok({"data": [INFO]}), ok(INFO))
    client = connect(gateway)
    assert client.put_glossary("kitchen", {"a": "b"}, source="es").size == 1
    assert client.glossary("kitchen").terms == {"a": "b"}
    assert client.glossaries().data[0].name == "kitchen"
    assert client.delete_glossary("kitchen").source == "es"
    one, every = "/v1/glossaries/kitchen", "/v1/glossaries"
    sent = [(request.method, request.url.path, request.content) for request in gateway.requests]
    assert sent[1:] == [("GET", one, b""), ("GET", every, b""), ("DELETE", one, b"")]
    assert sent[0][:2] == ("PUT", one)
    assert json.loads(sent[0][2]) == {"name": "kitchen", "terms": {"a": "b"}, "source": "es"}
    for name in ("", "../x", "a/b", "a?b"):
        with pytest.raises(errors.InvalidArgument):
            client.glossary(name)
    assert len(gateway.requests) == 4


def test_the_key_is_a_bearer_token(connect: Any) -> None:
    gateway = Gateway(ok({"object": "list", "data": []}))
    connect(gateway, api_key="s3cret").models()
    assert gateway.requests[0].headers["authorization"] == "Bearer s3cret"


def test_a_path_before_the_api_is_kept() -> None:
    gateway = Gateway(ok(TRANSLATED))
    transport = httpx.MockTransport(gateway)
    with triptych.Client("http://host/models/", transport=transport) as client:
        client.translate("a")
    assert gateway.requests[0].url.path == "/models/v1/translate"


def test_a_failed_item_keeps_its_place(connect: Any) -> None:
    error = {"type": "too_long", "message": "600 tokens, at most 512"}
    items = [{"index": 0, "error": error}, {"index": 1, "text": "b", "score": 0.0}]
    response = connect(Gateway(ok({"model": "m", "data": items}))).translate(["a", "b"])
    assert response.data[0].error.type == "too_long"
    assert response.data[0].text is None
    assert response.data[1].text == "b"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.InvalidRequest),
        (401, errors.Unauthorized),
        (404, errors.NotFound),
        (413, errors.InvalidRequest),
        (415, errors.InvalidRequest),
        (422, errors.InvalidRequest),
        (429, errors.Overloaded),
        (500, errors.ServerError),
        (503, errors.Unavailable),
        (504, errors.DeadlineExceeded),
    ],
)
def test_each_status_has_its_exception(connect: Any, status: int, kind: type) -> None:
    gateway = Gateway(failed(status, "wire", **{"x-request-id": "r1", "retry-after": "7"}))
    with pytest.raises(errors.ApiError) as caught:
        connect(gateway, retries=Retries(attempts=1)).translate("a")
    error = caught.value
    assert type(error) is kind
    assert (error.status, error.type, error.message) == (status, "wire", "what, why")
    assert (error.field, error.request_id, error.retry_after_s) == ("texts", "r1", 7.0)
    assert str(error) == "what, why"


def test_a_proxys_error_page_is_still_an_api_error(connect: Any) -> None:
    page = httpx.Response(502, text="<html>Bad Gateway</html>")
    with pytest.raises(errors.ServerError, match="502 Bad Gateway") as caught:
        connect(Gateway(page)).models()
    assert caught.value.type == "http_502"


@pytest.mark.parametrize("body", ["<html>", "{}", '{"model": "m", "data": [{"text": "no index"}]}'])
def test_response_of_another_server_is_refused(connect: Any, body: str) -> None:
    with pytest.raises(errors.InvalidResponse, match="is not a Triptych gateway"):
        connect(Gateway(httpx.Response(200, text=body))).translate("a")


@pytest.mark.parametrize(
    "first",
    [
        429,
        503,
        httpx.ConnectError("refused"),
        httpx.RemoteProtocolError("disconnected"),
        httpx.ReadError("reset"),
    ],
    ids=lambda first: str(first),
)
def test_transient_failure_is_retried(connect: Any, first: int | Exception) -> None:
    refusal = failed(first, **{"retry-after": "0"}) if isinstance(first, int) else first
    gateway = Gateway(refusal, ok(TRANSLATED))
    assert connect(gateway).translate("a").data[0].text == "Hello."
    assert gateway.requests[0].content == gateway.requests[1].content


def test_retries_are_bounded(connect: Any) -> None:
    gateway = Gateway(*(httpx.ConnectError("refused") for _ in range(9)))
    with pytest.raises(errors.ConnectionFailed, match=r"cannot reach .*refused"):
        connect(gateway).translate("a")
    assert len(gateway.requests) == QUICK.attempts


@pytest.mark.parametrize(
    ("response", "kind", "message"),
    [
        *((status, errors.ApiError, "what, why") for status in (422, 500, 504)),
        (httpx.ReadTimeout("slow"), errors.Timeout, "no response from"),
    ],
)
def test_other_errors_are_raised_at_once(
    connect: Any, response: int | Exception, kind: type[Exception], message: str
) -> None:
    first = failed(response) if isinstance(response, int) else response
    gateway = Gateway(first, ok(TRANSLATED))
    with pytest.raises(kind, match=message):
        connect(gateway).translate("a")
    assert len(gateway.requests) == 1


@pytest.mark.parametrize("probe", ["ready", "health"])
def test_probes_are_sent_once_and_return_a_bool(connect: Any, probe: str) -> None:
    gateway = Gateway(ok({}), failed(503))
    client = connect(gateway)
    assert getattr(client, probe)() is True
    assert getattr(client, probe)() is False
    assert [request.url.path for request in gateway.requests] == [f"/{probe}"] * 2


def test_a_probe_of_another_server_is_an_error(connect: Any) -> None:
    with pytest.raises(errors.NotFound):
        connect(Gateway(httpx.Response(404))).ready()
    with pytest.raises(errors.ConnectionFailed):
        connect(Gateway(httpx.ConnectError("refused"))).ready()


@pytest.mark.parametrize(
    ("send", "field"),
    [
        (lambda client: client.translate([]), "texts"),
        (lambda client: client.translate("a", num_beams=0), "num_beams"),
        (lambda client: client.translate("a", length_penalty=float("nan")), "length_penalty"),
        (lambda client: client.caption([]), "images"),
        (lambda client: client.zero_shot(b"x", []), "labels"),
    ],
)
def test_a_broken_rule_is_found_before_sending(connect: Any, send: Any, field: str) -> None:
    gateway = Gateway()
    with pytest.raises(errors.InvalidArgument, match=field):
        send(connect(gateway))
    assert gateway.requests == []


@pytest.mark.parametrize("url", ["", "localhost:8080", "ftp://host", "http://", "http://[::"])
def test_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(errors.InvalidArgument, match="not a URL"):
        triptych.Client(url)


def test_key_with_control_characters_is_refused() -> None:
    with pytest.raises(errors.InvalidArgument, match="API key"):
        triptych.Client(URL, api_key="a\nb")


async def test_async_calls_run_side_by_side() -> None:
    arrived = 0
    both = asyncio.Event()

    async def respond(request: httpx.Request) -> httpx.Response:
        nonlocal arrived
        arrived += 1
        if arrived == 2:
            both.set()
        await both.wait()
        return ok(TRANSLATED)

    async with triptych.AsyncClient(URL, transport=httpx.MockTransport(respond)) as client:
        responses = await asyncio.wait_for(
            asyncio.gather(client.translate("a"), client.translate("b")), timeout=10
        )
    assert len(responses) == 2


@pytest.mark.parametrize("kind", [triptych.Client, triptych.AsyncClient])
@pytest.mark.parametrize(
    ("url", "proxy", "are_read"),
    [
        ("http://gateway:8080", "", False),
        ("https://gateway", "", True),
        ("HTTPS://gateway", "", True),
        ("http://gateway:8080", "https://proxy:3128", True),
    ],
)
def test_certificates_are_read_where_tls_is_used(
    kind: type, url: str, proxy: str, are_read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []
    make = ssl.create_default_context
    monkeypatch.setattr(
        ssl, "create_default_context", lambda **given: read.append(1) or make(**given)
    )
    monkeypatch.setenv("http_proxy", proxy)
    kind(url)
    assert bool(read) == are_read


@pytest.fixture
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.usefixtures("_no_proxies")
@pytest.mark.parametrize("client", [triptych.Client, triptych.AsyncClient])
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("ALL_PROXY", "socks5://me:secret@127.0.0.1:9", r"^socks5://127.0.0.1:9 of \$ALL_PROXY "),
        ("all_proxy", "ftp://127.0.0.1:9", r"^ftp://127.0.0.1:9 of \$all_proxy .*scheme"),
        ("http_proxy", "http://[::1", r"\$http_proxy"),
    ],
)
def test_proxy_that_cannot_be_used_is_named(
    client: Any, name: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(errors.InvalidArgument, match=message) as refused:
        client("http://127.0.0.1:9")
    assert "secret" not in str(refused.value)


@pytest.mark.usefixtures("_no_proxies")
@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"http_proxy": "http://me:secret@127.0.0.1:9"}, "the proxy http://127.0.0.1:9 of $http_"),
        ({"HTTP_PROXY": "127.0.0.1:9"}, "through the proxy 127.0.0.1:9 of $HTTP_PROXY"),
        ({"ALL_PROXY": "http://127.0.0.1:9"}, "through the proxy http://127.0.0.1:9 of $ALL_PROXY"),
        ({"https_proxy": "http://127.0.0.1:9"}, None),
        ({"http_proxy": "http://127.0.0.1:9", "no_proxy": "127.0.0.1"}, None),
        ({}, None),
    ],
)
async def test_failure_names_the_proxy_that_was_used(
    variables: dict[str, str], named: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    messages = []
    with triptych.Client("http://127.0.0.1:8", retries=QUICK) as client:
        with pytest.raises(errors.ConnectionFailed) as failed:
            client.models()
        messages.append(str(failed.value))
    async with triptych.AsyncClient("http://127.0.0.1:8", retries=QUICK) as client:
        with pytest.raises(errors.ConnectionFailed) as failed:
            await client.models()
        messages.append(str(failed.value))
    for message in messages:
        assert message.startswith("cannot reach http://127.0.0.1:8/")
        assert (named in message) if named else ("proxy" not in message)
        assert "secret" not in message


RULES = Retries(attempts=4, first_wait_s=1.0, longest_wait_s=3.0)


def overloaded(retry_after_s: float | None = None) -> Overloaded:
    return Overloaded("busy", status=429, type="overloaded", retry_after_s=retry_after_s)


def test_the_wait_doubles_up_to_its_bound() -> None:
    state = random.getstate()
    for failed, longest in ((1, 1.0), (2, 2.0), (3, 3.0)):
        waits = [RULES.wait_s(failed, overloaded()) for _ in range(100)]
        assert all(wait is not None and longest / 2 <= wait <= longest for wait in waits)
        assert len(set(waits)) > 1, "clients refused together retry together"
    assert random.getstate() == state, "a client draws from the generator of its program"


@pytest.mark.parametrize(
    ("failed", "error", "waits"),
    [
        (4, overloaded(), False),  # the last attempt
        (1, overloaded(2.5), 2.5),
        (3, overloaded(0.0), 0.0),
        (1, overloaded(3.5), False),  # longer than the longest wait
        (1, ConnectionFailed("no"), True),
        (1, Unavailable("draining", status=503, type="unavailable"), True),
        (1, Timeout("late"), False),
        (1, InvalidRequest("bad", status=422, type="invalid_request"), False),
        (1, ServerError("bug", status=500, type="internal"), False),
        (1, TriptychError("other"), False),
    ],
)
def test_what_may_pass_is_tried_again_after_the_servers_wait(
    failed: int, error: TriptychError, waits: bool | float
) -> None:
    wait_s = RULES.wait_s(failed, error)
    assert (wait_s is not None) == (waits is not False)
    if isinstance(waits, float):
        assert wait_s == waits


def test_a_call_is_sent_once_at_least() -> None:
    with pytest.raises(ValueError, match="attempts"):
        Retries(attempts=0)
