"""API keys, and budgets of bytes, pixels and connections."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import math
import resource
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from PIL import Image
from pydantic import SecretStr

from inference.errors import InvalidRequest, Overloaded, SetupError, Unauthorized
from serving.gateway.admission.admission import FREE_BYTES, Admission
from serving.gateway.admission.auth import KEY, ApiKey, Keys
from serving.gateway.admission.descriptors import OWN, limit_connections
from serving.gateway.grpc.grpc_call import NAME
from serving.gateway.http.router import Route, Router
from serving.gateway.server import app
from tests.inference.processing.test_image import png_header
from tests.inference.tiny_models import image_file
from tests.serving.gateway.conftest import RED, Gateway, MakeGateway, error_of
from tests.serving.gateway.test_grpc import Front
from tests.serving.test_process_pool import is_gone, sleep
from tests.serving.waiting import Clock, until
from triptych import triptych_pb2 as pb

BODY = {"texts": ["uno dos"]}
OPEN = {
    *("/health", "/ready", "/v2/health/live", "/v2/health/ready"),  # probes
    *("/", "/ui/{name:path}"),  # the page, which asks for the key
    *("/languages", "/frontend/settings"),  # as LibreTranslate does
    "/download_file/{name}",  # its names are secrets
}
REFUSED = {401, 403}
WRONG = ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic alice-key"})
RIGHT = {"authorization": "Bearer alice-key"}


def entry(name: str, key: str, **limits: int) -> str:
    digest = hashlib.sha256(key.encode()).hexdigest()
    lines = [f'name = "{name}"', f'sha256 = "{digest}"', *(f"{n} = {v}" for n, v in limits.items())]
    return "\n".join(["[[keys]]", *lines, ""])


def write_keys(folder: Path, **limits: int) -> Path:
    """A file of the keys `alice-key`, with these limits, and `bob-key`."""
    path = folder / "keys.toml"
    path.write_text(entry("alice", "alice-key", **limits) + entry("bob", "bob-key"))
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_keys(tmp_path, max_concurrent_requests=1)


async def test_every_route_needs_a_key(
    make_gateway: MakeGateway, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, Sequence[str]]] = []

    class Listing(Router):
        def __init__(self, routes: list[Route], *rest: Any) -> None:
            made.extend((route.path, route.methods) for route in routes)
            super().__init__(routes, *rest)

    monkeypatch.setattr(app, "Router", Listing)
    gateway = make_gateway(api_keys=file)
    tried = set()
    for path, methods in made:
        address = path.replace("{task}", "translate").replace("{model}", "translate")
        address = address.replace("{name:path}", "page.js").replace("{name}", "kitchen")
        for method in methods:
            body = {"json": {}} if method in ("POST", "PUT") else {}
            for headers in (*WRONG, RIGHT):
                response = await gateway.http.request(method, address, headers=headers, **body)
                is_refused = response.status_code in REFUSED
                assert is_refused == (path not in OPEN and headers != RIGHT), (method, path)
        tried.add(path)
    assert {
        "/metrics",
        "/docs",
        "/openapi.json",
        "/v1/translate",
        "/v1/glossaries",
        "/v1/glossaries/{name}",
        "/hf/{model}",
        "/translate",
    } < tried
    assert len(tried) > 35
    for headers in WRONG:
        assert (await gateway.http.get("/no/such", headers=headers)).status_code == 401
    assert (await gateway.http.get("/no/such", headers=RIGHT)).status_code == 404


async def test_every_grpc_method_needs_a_key(make_gateway: MakeGateway, file: Path) -> None:
    gateway = make_gateway(grpc_port=0, api_keys=file)
    async with Front(gateway) as front:
        methods = pb.DESCRIPTOR.services_by_name["Triptych"].methods
        for headers in WRONG:
            metadata = tuple(headers.items())
            for method in methods:
                call = front.channel.unary_stream(f"/{NAME}/{method.name}")(b"", metadata=metadata)
                with pytest.raises(grpc.RpcError) as refused:
                    async for _ in call:
                        pass
                assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED, method.name
            # no message: a client that is refused while it sends one may report INTERNAL
            reflection = reflection_pb2_grpc.ServerReflectionStub(front.channel)
            call = reflection.ServerReflectionInfo(metadata=metadata)
            assert await asyncio.wait_for(call.code(), 10) is grpc.StatusCode.UNAUTHENTICATED
        assert gateway.inference.calls == []
        names = await reflected(front, tuple(RIGHT.items()))
        assert {NAME, "grpc.health.v1.Health"} <= set(names)
        health = health_pb2_grpc.HealthStub(front.channel)
        assert (await health.Check(health_pb2.HealthCheckRequest())).status
        request = pb.TranslateRequest(texts=["uno dos"])
        assert (await front.stub.Translate(request, metadata=tuple(RIGHT.items()))).data[0].text


async def reflected(front: Front, metadata: tuple[tuple[str, str], ...]) -> list[str]:
    stub = reflection_pb2_grpc.ServerReflectionStub(front.channel)
    asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    answers = [answer async for answer in stub.ServerReflectionInfo(asked, metadata=metadata)]
    return [service.name for service in answers[0].list_services_response.service]


async def test_logs_have_the_name_and_never_the_key(
    make_gateway: MakeGateway, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    gateway = make_gateway(api_keys=file)
    assert (await gateway.http.post("/v1/translate", json=BODY, headers=RIGHT)).status_code == 200
    (record,) = [one for one in caplog.records if one.getMessage() == "answered"]
    assert record.key == "alice"
    async with Front(make_gateway(grpc_port=0, api_keys=file)) as front:
        request = pb.TranslateRequest(texts=["uno"])
        await front.stub.Translate(request, metadata=(("authorization", "Bearer bob-key"),))
    assert [one.key for one in caplog.records if hasattr(one, "key")] == ["alice", "bob"]
    assert "alice-key" not in str([vars(one) for one in caplog.records])


async def test_a_key_has_its_own_number_of_requests(make_gateway: MakeGateway, file: Path) -> None:
    gateway = make_gateway(api_keys=file)
    first = await gateway.held("/v1/translate", json=BODY, headers=RIGHT)
    refused = await post(gateway, "alice-key")
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "1"
    assert "1 requests with this key" in refused.json()["error"]["message"]
    others = [asyncio.create_task(post(gateway, "bob-key")) for _ in range(3)]
    await until(lambda: gateway.inference.running == 4)
    gateway.inference.hold.set()
    assert {answer.status_code for answer in await asyncio.gather(first, *others)} == {200}
    assert (await post(gateway, "alice-key")).status_code == 200


async def test_a_key_has_its_own_number_of_tokens(
    make_gateway: MakeGateway, tmp_path: Path
) -> None:
    gateway = make_gateway(api_keys=write_keys(tmp_path, max_concurrent_tokens=4))
    # three tokens: two words and the end
    first = await gateway.held("/v1/translate", json=BODY, headers=RIGHT)
    refused = await post(gateway, "alice-key")
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    other = await gateway.held("/v1/translate", json=BODY, headers=BOB)
    gateway.inference.hold.set()
    assert {answer.status_code for answer in await asyncio.gather(first, other)} == {200}
    long = await post(gateway, "alice-key", ["uno dos tres cuatro cinco"])
    assert (long.status_code, long.json()["error"]["type"]) == (422, "invalid_request")
    assert (await post(gateway, "alice-key")).status_code == 200


async def test_tokens_are_freed_while_other_requests_of_the_key_run() -> None:
    gate = admission()
    KEY.set(ApiKey(name="alice", sha256="0" * 64, max_concurrent_tokens=6))
    with gate.request():
        for _ in range(2):
            with gate.reserve_tokens(6), pytest.raises(Overloaded), gate.reserve_tokens(1):
                pass


async def test_streams_count_for_a_key(make_gateway: MakeGateway, file: Path) -> None:
    gateway = make_gateway(api_keys=file)
    gateway.inference.steps = asyncio.Semaphore(0)
    body = {"prompts": ["uno dos"], "stream": True}
    streaming = asyncio.create_task(gateway.http.post("/v1/generate", json=body, headers=RIGHT))
    await until(lambda: gateway.inference.running == 1)
    assert (await post(gateway, "alice-key")).status_code == 429
    for _ in range(100):
        gateway.inference.steps.release()
    assert (await streaming).status_code == 200
    assert (await post(gateway, "alice-key")).status_code == 200


def test_the_file_is_read_again(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    keys = Keys(file=file, clock=clock)
    keys.check("alice-key")
    file.write_text(entry("alice", "new-key"))
    keys.check("alice-key")  # looked at within the last second
    clock.now_s = 2
    keys.check("new-key")
    for gone in ("alice-key", "bob-key"):
        with pytest.raises(Unauthorized):
            keys.check(gone)
    for damage in ("", "keys = 1", "[[keys]]\nname = 'x'", "\0"):
        clock.now_s += 2
        file.write_text(damage)
        keys.check("new-key")
    assert caplog.text.count("the keys stay as they were") == 4
    clock.now_s += 2
    file.unlink()
    keys.check("new-key")


def test_the_single_key_counts_beside_the_file(file: Path) -> None:
    keys = Keys(SecretStr("sesame"), file)
    for key, name in (("sesame", "default"), ("bob-key", "bob")):
        keys.check("", key)
        found = KEY.get()
        assert found.name == name


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "keys: Field required"),
        ("keys = []", "keys: List should have at least 1 item"),
        ("[[keys]]\nname = 'a b'\nsha256 = '0'", "keys.0.name"),
        (entry("a", "x") + "key = 'x'", "keys.0.key: Extra inputs"),
        (entry("a", "x") + entry("a", "y"), "two keys have one name"),
        (entry("a", "x") + entry("b", "x"), "two keys have one name"),
        (entry("default", "x"), "one is named 'default'"),
        ("{", "is not TOML"),
    ],
)
def test_damaged_file_is_one_line_at_the_start(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(text)
    with pytest.raises(SetupError) as raised:
        Keys(file=file)
    assert problem in raised.value.message
    assert "\n" not in raised.value.message
    with pytest.raises(SetupError, match="cannot read"):
        Keys(file=tmp_path / "missing.toml")


async def post(gateway: Gateway, key: str, texts: list[str] | None = None):
    headers = {"authorization": f"Bearer {key}"}
    body = {"texts": texts} if texts else BODY
    return await gateway.http.post("/v1/translate", json=body, headers=headers)


JSON = {"content-type": "application/json"}
ALICE, BOB = ({**JSON, "authorization": f"Bearer {name}"} for name in ("alice-key", "bob-key"))
SMALL = b'{"texts": "hello"}'


def body_of(size: int) -> bytes:
    return SMALL + b" " * (size - len(SMALL))


class Upload:
    """A body whose last part waits to be sent."""

    def __init__(self, gateway: Gateway, size: int, headers: dict[str, str] = JSON) -> None:
        self._size = size
        self._rest = asyncio.Event()
        self.begun = asyncio.Event()
        self.response = asyncio.ensure_future(
            gateway.http.post("/v1/translate", content=self._parts(), headers=headers)
        )

    async def _parts(self) -> AsyncIterator[bytes]:
        yield body_of(self._size - 1)
        self.begun.set()
        await self._rest.wait()
        yield b" "

    async def finished(self) -> int:
        self._rest.set()
        return (await self.response).status_code


@pytest.mark.parametrize("is_declared", [True, False])
async def test_bodies_beyond_the_limit_get_429(
    make_gateway: MakeGateway, is_declared: bool
) -> None:
    gateway = make_gateway(max_concurrent_bytes=500_000)
    first = Upload(gateway, FREE_BYTES + 400_000)
    await first.begun.wait()
    content = body_of(FREE_BYTES + 200_000)

    async def parts() -> AsyncIterator[bytes]:
        yield content

    async def send() -> tuple[int, str | None]:
        given = content if is_declared else parts()
        response = await gateway.http.post("/v1/translate", content=given, headers=JSON)
        return response.status_code, response.headers.get("retry-after")

    assert await send() == (429, "1")
    await gateway.post("/v1/translate", content=body_of(FREE_BYTES), headers=JSON)
    assert await first.finished() == 200
    assert await send() == (200, None)


async def test_body_that_could_never_be_read_gets_413(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(max_concurrent_bytes=100_000)
    content = body_of(FREE_BYTES + 100_001)
    response = await gateway.http.post("/v1/translate", content=content, headers=JSON)
    assert (response.status_code, error_of(response)["type"]) == (413, "payload_too_large")


async def test_key_has_a_limit_of_its_own(make_gateway: MakeGateway, tmp_path: Path) -> None:
    file = write_keys(tmp_path, max_concurrent_bytes=300_000)
    gateway = make_gateway(api_keys=file, max_concurrent_bytes=10**6)
    first = Upload(gateway, FREE_BYTES + 200_000, ALICE)
    await first.begun.wait()
    content = body_of(FREE_BYTES + 200_000)
    refused = await gateway.http.post("/v1/translate", content=content, headers=ALICE)
    assert (refused.status_code, "with this key" in error_of(refused)["message"]) == (429, True)
    await gateway.post("/v1/translate", content=content, headers=BOB)
    assert await first.finished() == 200
    assert (await gateway.http.post("/v1/translate", content=content, headers=ALICE)).is_success


async def test_disconnect_while_sending_frees_the_bytes(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(max_concurrent_bytes=500_000)
    first = Upload(gateway, FREE_BYTES + 400_000)
    await first.begun.wait()
    first.response.cancel()
    await asyncio.wait((first.response,))
    content = body_of(FREE_BYTES + 400_000)
    assert (await gateway.http.post("/v1/translate", content=content, headers=JSON)).is_success


ONE = math.prod(Image.open(BytesIO(image_file("red"))).size)
"""Pixels of an image."""


def admission(limit: int = 100) -> Admission:
    return Admission(max_requests=9, max_tokens=9, max_pixels=limit, max_bytes=9, max_sequences=9)


def key(name: str, limit: int | None) -> ApiKey:
    return ApiKey(name=name, sha256="0" * 64, max_concurrent_pixels=limit)


def test_request_prepared_again_reserves_once() -> None:
    gate = admission()
    with gate.pixels() as reserve:
        reserve(60)
        reserve(60)
        reserve(80)
        with gate.pixels() as other:
            other(20)
        with pytest.raises(Overloaded):
            _reserve(gate, 21)
    with gate.pixels() as reserve:
        reserve(100)


def _reserve(gate: Admission, pixels: int) -> None:
    with gate.pixels() as reserve:
        reserve(pixels)


async def test_key_has_its_own_budget() -> None:
    gate = admission()
    KEY.set(key("alice", 50))
    with gate.request(), gate.pixels() as reserve:
        reserve(30)
        with pytest.raises(Overloaded, match="30 pixels with this key"), gate.request():
            _reserve(gate, 21)
        with pytest.raises(InvalidRequest, match="51 pixels in all"):
            _reserve(gate, 51)
        KEY.set(key("bob", None))
        with gate.request():
            _reserve(gate, 70)
            with pytest.raises(Overloaded):
                _reserve(gate, 71)


@pytest.fixture
def of_two_pictures(make_gateway: MakeGateway) -> Gateway:
    """Calls wait, and two pictures fill its budget."""
    gateway = make_gateway(max_concurrent_pixels=2 * ONE)
    gateway.inference.hold = asyncio.Event()
    return gateway


async def caption(gateway: Gateway, count: int, **fields: object) -> httpx.Response:
    body = {"images": [RED] * count, "num_beams": 1, **fields}
    return await gateway.http.post("/v1/caption", json=body)


async def test_full_budget_is_429_before_any_header(of_two_pictures: Gateway) -> None:
    first = asyncio.create_task(caption(of_two_pictures, 2))
    await until(lambda: of_two_pictures.inference.running)
    for fields in ({}, {"stream": True}):
        refused = await caption(of_two_pictures, 1, **fields)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert error_of(refused)["type"] == "overloaded"
    of_two_pictures.inference.hold.set()
    assert (await first).status_code == 200
    assert (await caption(of_two_pictures, 2, stream=True)).status_code == 200
    assert (await caption(of_two_pictures, 2)).status_code == 200


async def test_request_over_the_whole_budget_is_422(of_two_pictures: Gateway) -> None:
    refused = await caption(of_two_pictures, 3)
    assert refused.status_code == 422
    assert error_of(refused)["field"] == "images"


async def test_only_pixels_that_would_be_decoded_count(of_two_pictures: Gateway) -> None:
    of_two_pictures.inference.hold.set()
    huge = base64.b64encode(png_header(60_000, 60_000)).decode()
    body = {"images": [RED, RED, huge, "junk", "aGVsbG8="]}
    response = await of_two_pictures.post("/v1/caption", json=body)
    errors = [item.get("error", {}).get("type") for item in response.json()["data"]]
    assert errors == [None, None, "payload_too_large", "unsupported_image", "unsupported_image"]


async def test_grpc_and_keys(make_gateway: MakeGateway, tmp_path: Path) -> None:
    file = write_keys(tmp_path, max_concurrent_pixels=ONE)
    gateway = make_gateway(grpc_port=0, api_keys=file)
    gateway.inference.hold = asyncio.Event()
    request = pb.CaptionRequest(images=[image_file("red")])
    alice = (("authorization", "Bearer alice-key"),)
    async with Front(gateway) as front:
        first = asyncio.ensure_future(front.stub.Caption(request, metadata=alice))
        await until(lambda: gateway.inference.running == 1)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await front.stub.Caption(request, metadata=alice)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert dict(refused.value.trailing_metadata())["retry-after"] == "1"
        bob = (("authorization", "Bearer bob-key"),)
        other = asyncio.ensure_future(front.stub.Caption(request, metadata=bob))
        await until(lambda: gateway.inference.running == 2)
        gateway.inference.hold.set()
        assert (await first).data[0].text == (await other).data[0].text == "picture"


def slow_picture(file: Path) -> str:
    """A picture that `tests.serving.test_process_pool.sleep` reads."""
    return base64.b64encode(image_file("red") + b"\0" + str(file).encode()).decode()


async def test_deadline_ends_decoding_before_its_pixels_are_free(
    make_gateway: MakeGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = make_gateway(request_timeout=2, max_concurrent_pixels=ONE)
    file = tmp_path / "pid"
    with monkeypatch.context() as patch:
        patch.setattr("serving.gateway.requests.service.read_image", sleep)
        body = {"images": [slow_picture(file)]}
        slow = asyncio.create_task(gateway.http.post("/v1/caption", json=body))
        await until(file.exists)
    pid = int(file.read_text())
    assert (await caption(gateway, 1)).status_code == 429  # while it is decoded
    response = await slow
    assert response.status_code == 504
    assert is_gone(pid)
    assert (await caption(gateway, 1)).status_code == 200


async def test_disconnect_ends_decoding(
    make_gateway: MakeGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = make_gateway(grpc_port=0, max_concurrent_pixels=ONE)
    file = tmp_path / "pid"
    picture = base64.b64decode(slow_picture(file))
    async with Front(gateway) as front:
        with monkeypatch.context() as patch:
            patch.setattr("serving.gateway.requests.service.read_image", sleep)
            call = front.stub.Caption(pb.CaptionRequest(images=[picture]))
            running = asyncio.ensure_future(call)
            await until(file.exists)
        running.cancel()
        await until(lambda: is_gone(int(file.read_text())))
    async with asyncio.timeout(20):  # the pixels are free a little later than the process ends
        while (await caption(gateway, 1)).status_code != 200:
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("limit", [300, 1024, 20_000, 65_536])
@pytest.mark.parametrize("given", [None, 16])
def test_own_files_are_never_left_to_clients(limit: int, given: int | None) -> None:
    found = limit_connections(limit, given)
    assert found.http_connections + found.grpc_connections + OWN <= limit
    assert min(found.http_connections, found.grpc_connections) >= 16
    if given:
        assert found.http_connections == given


@pytest.mark.parametrize(("limit", "given"), [(256, None), (1024, 5000), (64, 16)])
def test_limit_that_is_too_low_is_named(limit: int, given: int | None) -> None:
    with pytest.raises(SetupError, match=f"at most {limit} files .*ulimit -n"):
        limit_connections(limit, given)


def test_soft_limit_is_raised_to_the_hard_one() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    program = (
        "import resource; from serving.gateway.admission.descriptors import raise_limit\n"
        "_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))\n"
        "limit = raise_limit()\n"
        "assert limit == resource.getrlimit(resource.RLIMIT_NOFILE)[0], limit\n"
        "assert limit == (65536 if hard == resource.RLIM_INFINITY else min(hard, 65536))\n"
    )
    assert hard != 64
    subprocess.run([sys.executable, "-c", program], check=True)
