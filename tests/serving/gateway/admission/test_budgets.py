"""Budgets of bytes, pixels and connections."""

from __future__ import annotations

import asyncio
import base64
import resource
import subprocess
import sys
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path

import grpc
import httpx
import pytest
from PIL import Image

from inference.errors import InvalidRequest, Overloaded, SetupError
from serving.gateway.admission.admission import FREE_BYTES, Admission
from serving.gateway.admission.auth import KEY, ApiKey
from serving.gateway.admission.descriptors import OWN, limit_connections
from tests.inference.processing.test_image import png_header
from tests.inference.tiny_models import image_file
from tests.serving.gateway.admission.test_keys import entry
from tests.serving.gateway.conftest import Gateway, MakeGateway, error_of
from tests.serving.gateway.grpc.test_grpc_front import Front
from tests.serving.test_process_pool import is_gone, sleep
from tests.serving.waiting import until
from triptych import triptych_pb2 as pb

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
    small = await gateway.http.post("/v1/translate", content=body_of(FREE_BYTES), headers=JSON)
    assert small.status_code == 200
    assert await first.finished() == 200
    assert await send() == (200, None)


async def test_body_that_could_never_be_read_gets_413(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(max_concurrent_bytes=100_000)
    content = body_of(FREE_BYTES + 100_001)
    response = await gateway.http.post("/v1/translate", content=content, headers=JSON)
    assert (response.status_code, error_of(response)["type"]) == (413, "payload_too_large")


async def test_key_has_a_limit_of_its_own(make_gateway: MakeGateway, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    alice = entry("alice", "alice-key", max_concurrent_bytes=300_000)
    file.write_text(alice + entry("bob", "bob-key"))
    gateway = make_gateway(api_keys=file, max_concurrent_bytes=10**6)
    first = Upload(gateway, FREE_BYTES + 200_000, ALICE)
    await first.begun.wait()
    content = body_of(FREE_BYTES + 200_000)
    refused = await gateway.http.post("/v1/translate", content=content, headers=ALICE)
    assert (refused.status_code, "with this key" in error_of(refused)["message"]) == (429, True)
    served = await gateway.http.post("/v1/translate", content=content, headers=BOB)
    assert served.status_code == 200
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


RED = base64.b64encode(image_file("red")).decode()


def pixels_of_red() -> int:
    image = Image.open(BytesIO(image_file("red")))
    return image.width * image.height


ONE = pixels_of_red()


def admission(limit: int = 100) -> Admission:
    return Admission(max_requests=9, max_tokens=9, max_pixels=limit, max_bytes=9, max_sequences=9)


def key(name: str, limit: int | None) -> ApiKey:
    return ApiKey(name=name, sha256="0" * 64, max_concurrent_pixels=limit)


def test_pixels_are_freed_at_the_end_of_the_request() -> None:
    gate = admission()
    for _ in range(3):
        with gate.pixels() as reserve:
            reserve(60)
            with pytest.raises(Overloaded), gate.pixels() as other:
                other(41)
            with gate.pixels() as other:
                other(40)


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


def test_refused_reservation_holds_nothing() -> None:
    gate = admission()
    with pytest.raises(InvalidRequest), gate.pixels() as reserve:
        reserve(101)
    _reserve(gate, 100)


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
def gateway(make_gateway: MakeGateway) -> Gateway:
    gateway = make_gateway(max_concurrent_pixels=2 * ONE)
    gateway.inference.hold = asyncio.Event()
    return gateway


async def caption(gateway: Gateway, count: int, **fields: object) -> httpx.Response:
    body = {"images": [RED] * count, "num_beams": 1, **fields}
    return await gateway.http.post("/v1/caption", json=body)


async def test_full_budget_is_429_before_any_header(gateway: Gateway) -> None:
    first = asyncio.create_task(caption(gateway, 2))
    await until(lambda: gateway.inference.running)
    for fields in ({}, {"stream": True}):
        refused = await caption(gateway, 1, **fields)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert error_of(refused)["type"] == "overloaded"
    gateway.inference.hold.set()
    assert (await first).status_code == 200
    assert (await caption(gateway, 2, stream=True)).status_code == 200
    assert (await caption(gateway, 2)).status_code == 200


async def test_request_over_the_whole_budget_is_422(gateway: Gateway) -> None:
    refused = await caption(gateway, 3)
    assert refused.status_code == 422
    assert error_of(refused)["field"] == "images"


async def test_only_pixels_that_would_be_decoded_count(gateway: Gateway) -> None:
    gateway.inference.hold.set()
    huge = base64.b64encode(png_header(60_000, 60_000)).decode()
    body = {"images": [RED, RED, huge, "junk", "aGVsbG8="]}
    response = await gateway.http.post("/v1/caption", json=body)
    assert response.status_code == 200
    errors = [item.get("error", {}).get("type") for item in response.json()["data"]]
    assert errors == [None, None, "payload_too_large", "unsupported_image", "unsupported_image"]


async def test_grpc_and_keys(make_gateway: MakeGateway, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(entry("alice", "alice-key", max_concurrent_pixels=ONE) + entry("bob", "b"))
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
        other = asyncio.ensure_future(
            front.stub.Caption(request, metadata=(("authorization", "Bearer b"),))
        )
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
