"""Images by URL: what is fetched, and which addresses are public."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import json
import logging
import shutil
import ssl
import subprocess
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import httpx
import pytest
from pydantic import ValidationError

from serving.gateway.requests.image_urls import MAX_REDIRECTS, ImageFetcher, is_public
from serving.settings.gateway_settings import GatewaySettings
from tests.inference.tiny_models import box_writer, image_file
from tests.serving.gateway.conftest import Gateway, MakeGateway, error_of

LOOPBACK = "127.0.0.0/8"
"""The explicit setting without which this server would not be reached."""
RED = image_file("red")
HOST = "images.test"
Write = Callable[[asyncio.StreamWriter], Awaitable[None]]


def http(
    body: bytes = b"", status: str = "200 OK", kind: str = "image/png", **headers: str
) -> bytes:
    """A response with its length."""
    given = {"content-length": str(len(body)), "content-type": kind, "connection": "close"}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body


class ImageServer:
    """Serves.

    Attributes:
        answers: Path → response, or what writes it.
        requests: The heads of requests, in lower case.
    """

    def __init__(self) -> None:
        self.answers: dict[str, bytes | Write] = {}
        self.requests: list[str] = []
        self.closed = asyncio.Event()
        """Set when a client has closed its connection."""

    async def start(self, tls: ssl.SSLContext | None = None) -> ImageServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def stop(self) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.requests.append(head.lower())
            answer = self.answers.get(head.split()[1], http(status="404 Not Found"))
            if isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
            else:
                await answer(writer)
                await reader.read()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self.closed.set()
            writer.close()


class Names:
    """A resolver: host → its addresses at each look, the last ones from then on."""

    def __init__(self, **names: list[list[str]]) -> None:
        self._names = {name.replace("_", "."): looks for name, looks in names.items()}
        self.looks: list[str] = []

    async def __call__(self, host: str, port: int) -> list[ipaddress.IPv4Address]:
        self.looks.append(host)
        looks = self._names.get(host, [[host]])
        found = looks.pop(0) if len(looks) > 1 else looks[0]
        return [ipaddress.ip_address(address) for address in found]


class Caller:
    """A gateway that fetches from the server, by the name `images.test`."""

    def __init__(self, make: MakeGateway, server: ImageServer, **settings: object) -> None:
        origin = f"http://{HOST}:{server.port}"
        given = {"image_urls": origin, "image_url_networks": LOOPBACK, **settings}
        self.gateway: Gateway = make(**given)
        self.server = server
        self.url = f"{origin}/red.png"
        self.origin = origin
        self.names = Names(images_test=[["127.0.0.1"]])
        self.use(self.names)

    def use(self, names: Names) -> None:
        self.names = names
        self.gateway.service.fetcher = ImageFetcher(self.gateway.settings, names)

    async def caption(self, *urls: str) -> tuple[int, list[dict[str, object]]]:
        """The status, and for each image its text or its error."""
        good = base64.b64encode(RED).decode()
        response = await self.gateway.http.post("/v1/caption", json={"images": [*urls, good]})
        return response.status_code, response.json()["data"]

    async def refused_answer(self, answer: bytes | Write) -> dict[str, str]:
        """The error of a URL that the server answers so."""
        self.server.answers["/odd"] = answer
        return await self.refused(f"{self.origin}/odd")

    async def refused(self, url: str) -> dict[str, str]:
        """The error of one URL, beside an image that is served."""
        status, items = await self.caption(url)
        assert status == 200
        assert items[1]["text"] == "picture"
        error = items[0]["error"]
        assert error["field"] == "images.0"
        return error


@pytest.fixture
async def server() -> AsyncIterator[ImageServer]:
    started = await ImageServer().start()
    started.answers["/red.png"] = http(RED)
    yield started
    await started.stop()


MakeCaller = Callable[..., Caller]


@pytest.fixture
def make_caller(make_gateway: MakeGateway, server: ImageServer) -> MakeCaller:
    return partial(Caller, make_gateway, server)


@pytest.fixture
def caller(make_caller: MakeCaller) -> Caller:
    return make_caller()


async def test_image_is_fetched(caller: Caller) -> None:
    status, items = await caller.caption(caller.url, caller.url.replace("http", "HTTP"))
    assert (status, [item["text"] for item in items]) == (200, ["picture"] * 3)
    head = caller.server.requests[0]
    assert f"host: {HOST}:{caller.server.port}\r\n" in head
    for secret in ("authorization", "cookie", "referer"):
        assert secret not in head


async def test_urls_are_off_by_default(make_gateway: MakeGateway, server: ImageServer) -> None:
    gateway = make_gateway()
    body = {"images": [f"http://127.0.0.1:{server.port}/red.png"]}
    response = await gateway.post("/v1/caption", json=body, status=422)
    assert "not fetched from a URL" in error_of(response)["message"]
    assert not server.requests


ROUTES = {
    "/v1/caption": ({"images": ["URL"]}, "picture"),
    "/v1/zero-shot": ({"images": ["URL"], "labels": ["a", "b"]}, "score"),
    "/v1/embed": ({"images": ["URL"]}, "embedding"),
    "/v1/embeddings": ({"input": ["URL"], "modality": "image", "model": "tiny-zero-shot"}, "embed"),
    "/hf/caption/tiny-caption": ({"inputs": "URL"}, "generated_text"),
    "/hf/zero-shot/tiny-zero-shot": (
        {"inputs": "URL", "parameters": {"candidate_labels": ["a", "b"]}},
        "score",
    ),
    "/hf/detect/tiny-detect": ({"inputs": "URL"}, "[]"),
}


@pytest.mark.parametrize("route", ROUTES)
async def test_every_route_with_images_takes_urls(caller: Caller, route: str) -> None:
    body, expected = ROUTES[route]
    caller.gateway.service.catalog.put(box_writer())
    text = json.dumps(body).replace("URL", caller.url)
    headers = {"content-type": "application/json"}
    response = await caller.gateway.post(route, content=text, headers=headers)
    assert expected in response.text
    assert len(caller.server.requests) == 1


async def test_url_in_a_form_and_of_a_stream(caller: Caller) -> None:
    form = await caller.gateway.http.post(
        "/v1/caption", files=[("images", (None, caller.url)), ("num_beams", (None, "1"))]
    )
    assert form.json()["data"][0]["text"] == "picture"
    body = {"images": [caller.url], "stream": True, "num_beams": 1}
    stream = await caller.gateway.http.post("/v1/caption", json=body)
    assert "picture" in stream.text
    assert len(caller.server.requests) == 2


@pytest.mark.parametrize(
    "addresses",
    [
        *(["127.0.0.1"], ["::ffff:127.0.0.1"], ["10.0.0.1"], ["169.254.169.254"]),
        ["8.8.8.8", "127.0.0.1"],
    ],
)
async def test_listed_host_with_an_internal_address_is_refused(
    make_caller: MakeCaller, addresses: list[str]
) -> None:
    caller = make_caller(image_url_networks="")
    caller.use(Names(images_test=[addresses]))
    error = await caller.refused(caller.url)
    assert "no public address" in error["message"]
    assert not caller.server.requests


async def test_name_that_changes_after_the_check_gains_nothing(caller: Caller) -> None:
    """DNS rebinding: there is one look, and the connection goes to what it returned."""
    caller.use(Names(images_test=[["127.0.0.1"], ["10.0.0.1"]]))
    status, items = await caller.caption(caller.url)
    assert (status, items[0]["text"]) == (200, "picture")
    assert caller.names.looks == [HOST]
    assert len(caller.server.requests) == 1


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "[::1]"),
        *("[::ffff:127.0.0.1]", "evil.test", "images.test.evil.test", "images.test."),
        *("xn--bcher-kva.test", "evilimages.test"),
    ],
)
async def test_host_that_is_not_listed_is_refused(caller: Caller, host: str) -> None:
    error = await caller.refused(f"http://{host}:{caller.server.port}/red.png")
    assert "not fetched from this host" in error["message"]
    assert not caller.names.looks


async def test_other_port_and_scheme_are_refused(caller: Caller) -> None:
    for url in (f"http://{HOST}/red.png", caller.url.replace("http:", "https:")):
        assert "not fetched from this host" in (await caller.refused(url))["message"]


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "http:///red.png",
        "http://images.test:PORT\\@evil.test/",
        "http://images.test:PORT/\r\nx: y",
        "http://images.test:99999/",
        "http://ımages.test:PORT/",
        "http://images.test:PORT/" + "a" * 2048,
        "http://[::1/",
        "http://0177.0.0.1/",
    ],
)
async def test_malformed_url_is_refused(caller: Caller, url: str) -> None:
    error = await caller.refused(url.replace("PORT", str(caller.server.port)))
    assert error["type"] == "invalid_request"
    assert not caller.server.requests


@pytest.mark.parametrize("other", ["file:///etc/passwd", "ftp://images.test/a", "gopher://x/"])
async def test_other_schemes_are_no_urls(caller: Caller, other: str) -> None:
    assert (await caller.refused(other))["type"] == "unsupported_image"


async def test_credentials_are_refused(caller: Caller) -> None:
    for user in ("user:secret@", "user@", "evil.test@"):
        error = await caller.refused(caller.url.replace("//", f"//{user}"))
        assert "credentials" in error["message"]
    assert not caller.server.requests


async def test_redirects_are_followed_a_few_times(caller: Caller) -> None:
    for number in range(5):
        target = f"/{number - 1}" if number else "/red.png"
        caller.server.answers[f"/{number}"] = http(status="302 Found", location=target)
    _, items = await caller.caption(f"{caller.origin}/{MAX_REDIRECTS - 1}")
    assert items[0]["text"] == "picture"
    error = await caller.refused(f"{caller.origin}/{MAX_REDIRECTS}")
    assert "redirects more than" in error["message"]


@pytest.mark.parametrize(
    "target",
    [
        "http://169.254.169.254/latest/meta-data/",
        "http://127.0.0.1:PORT/red.png",
        "//evil.test/",
        "https://images.test/",
        "file:///etc/passwd",
        "http://user:secret@images.test:PORT/red.png",
        "ftp://images.test/",
    ],
)
async def test_redirect_is_checked_again(caller: Caller, target: str) -> None:
    location = target.replace("PORT", str(caller.server.port))
    error = await caller.refused_answer(http(status="302 Found", location=location))
    assert error["type"] == "invalid_request"
    assert len(caller.server.requests) == 1


async def test_redirect_to_the_same_name_is_resolved_and_checked_again(
    make_caller: MakeCaller,
) -> None:
    caller = make_caller()
    caller.use(Names(images_test=[["127.0.0.1"], ["10.0.0.1"]]))
    error = await caller.refused_answer(http(status="302 Found", location="/red.png"))
    assert "no public address" in error["message"]
    assert len(caller.server.requests) == 1


async def test_declared_size_over_the_limit_is_refused_unread(make_caller: MakeCaller) -> None:
    caller = make_caller(payload_limit=20_000)
    error = await caller.refused_answer(http(b"", content_length="1000000000"))
    assert error["type"] == "payload_too_large"


async def test_endless_body_is_cut_off(make_caller: MakeCaller) -> None:
    caller = make_caller(payload_limit=20_000)

    async def endless(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: image/png\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"x" * 10_000)
            await writer.drain()

    error = await caller.refused_answer(endless)
    assert error["type"] == "payload_too_large"
    await caller.server.closed.wait()


async def test_images_of_a_request_share_the_limit(make_caller: MakeCaller) -> None:
    caller = make_caller(payload_limit=20_000)
    caller.server.answers["/part"] = http(b"x" * 9_000)
    _, items = await caller.caption(*[f"{caller.origin}/part"] * 3)
    kinds = [item["error"]["type"] for item in items[:3]]
    assert "payload_too_large" in kinds


@pytest.mark.parametrize("pause", ["before the head", "within the body", "a byte at a time"])
async def test_slow_server_ends_at_the_time_limit(make_caller: MakeCaller, pause: str) -> None:
    caller = make_caller(image_url_timeout=0.3)

    async def slow(writer: asyncio.StreamWriter) -> None:
        if pause != "before the head":
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: image/png\r\n\r\nx")
        while pause == "a byte at a time" and not writer.is_closing():
            writer.write(b"x")
            await asyncio.sleep(0.01)

    error = await caller.refused_answer(slow)
    assert "within 0.3 s" in error["message"]
    await caller.server.closed.wait()


async def test_slow_server_does_not_outlast_its_request(caller: Caller) -> None:
    async def silent(writer: asyncio.StreamWriter) -> None:
        pass

    caller.server.answers["/silent"] = silent
    await caller.gateway.post(
        "/v1/caption",
        json={"images": [f"{caller.origin}/silent"]},
        headers={"x-request-timeout": "0.2"},
        status=504,
    )


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (http(b"<html>", kind="text/html; charset=utf-8"), "unsupported_image"),
        (http(RED, kind="application/json"), "unsupported_image"),
        (http(zlib.compress(RED), content_encoding="deflate"), "unsupported_image"),
        (http(b"<svg/>", kind="image/svg+xml"), "unsupported_image"),
        (http(b"", kind="image/png"), "unsupported_image"),
        (http(RED, status="404 Not Found"), "invalid_request"),
        (http(RED, status="206 Partial Content"), "invalid_request"),
        (http(RED, status="401 Unauthorized", www_authenticate="Basic"), "invalid_request"),
        (http(status="302 Found"), "invalid_request"),
        (b"junk\r\n\r\n", "invalid_request"),
        (b"", "invalid_request"),
        (http(RED)[:-10], "invalid_request"),
    ],
)
async def test_what_is_not_a_whole_image_is_an_error_of_its_item(
    caller: Caller, answer: bytes, kind: str
) -> None:
    assert (await caller.refused_answer(answer))["type"] == kind


async def test_pixels_are_limited_as_in_uploads(make_caller: MakeCaller) -> None:
    caller = make_caller(max_image_pixels=1)
    await caller.gateway.post("/v1/caption", json={"images": [caller.url]}, status=413)


async def test_server_that_is_down(caller: Caller) -> None:
    await caller.server.stop()
    assert "could not be reached" in (await caller.refused(caller.url))["message"]


async def test_proxies_of_the_environment_are_not_used(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    caller.use(Names(images_test=[["127.0.0.1"]]))
    _, items = await caller.caption(caller.url)
    assert items[0]["text"] == "picture"


async def test_too_many_images_are_refused_before_any_is_fetched(make_caller: MakeCaller) -> None:
    caller = make_caller(max_client_batch_size=2)
    await caller.gateway.post("/v1/caption", json={"images": [caller.url] * 3}, status=422)
    assert not caller.server.requests


async def test_url_is_not_logged(caller: Caller, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    error = await caller.refused(f"{caller.origin}/secret-path?token=hidden")
    assert "secret-path" not in str(error)
    lines = [r for r in caplog.records if r.name.startswith("serving")]
    assert lines
    assert not any("secret-path" in r.getMessage() or HOST in r.getMessage() for r in lines)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl")
async def test_certificate_is_of_the_name_in_the_url(
    make_gateway: MakeGateway, tmp_path: Path
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "1", "-subj", f"/CN={HOST}", "-addext"]
    command += [f"subjectAltName=DNS:{HOST}", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    server = await ImageServer().start(tls)
    server.answers["/red.png"] = http(RED)
    hosts = f"https://{HOST}:{server.port}, https://other.test:{server.port}"
    caller = Caller(make_gateway, server, image_urls=hosts)
    names = Names(images_test=[["127.0.0.1"]], other_test=[["127.0.0.1"]])
    for trust, host, is_served in (
        (ssl.create_default_context(cafile=certificate), HOST, True),
        (ssl.create_default_context(cafile=certificate), "other.test", False),
        (None, HOST, False),
    ):
        caller.gateway.service.fetcher = ImageFetcher(caller.gateway.settings, names, trust)
        _, items = await caller.caption(f"https://{host}:{server.port}/red.png")
        assert ("text" in items[0]) == is_served, items[0]
    await server.stop()


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.8.8.8", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1"),
        *("169.254.169.254", "100.64.0.1", "192.0.0.1", "192.0.2.1", "198.18.0.1"),
        *("224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255"),
        *("::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1"),
        *("64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1"),
        *("2002:7f00:1::", "2002:a00:1::1", "2001:0:7f00:1::1", "2001:db8::1", "100::1"),
    ],
)
def test_address_that_is_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8"])
def test_public_address(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


def test_origins_of_the_flag() -> None:
    settings = GatewaySettings(image_urls="a.example, *.b.example,http://c.example:81,[::1]")
    cases = {
        "https://a.example/x": True,
        "https://A.example:443/x": True,
        "http://a.example/x": False,
        "https://x.a.example/": False,
        "https://x.b.example/": True,
        "https://b.example/": False,
        "https://xb.example/": False,
        "http://c.example:81/": True,
        "http://c.example/": False,
        "https://[::1]/": True,
    }
    for url, expected in cases.items():
        found = any(origin.matches(httpx.URL(url)) for origin in settings.image_urls)
        assert found == expected, url


@pytest.mark.parametrize(
    "wrong", ["*", "https://", "a b", "ftp://a", "user@a", "a/path", "a:123456"]
)
def test_flag_that_is_no_list_of_hosts(wrong: str) -> None:
    with pytest.raises(ValidationError):
        GatewaySettings(image_urls=wrong)
