"""API keys: every route, names in logs, limits of their own, and a file that changes."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from pydantic import SecretStr

from inference.errors import Overloaded, SetupError, Unauthorized
from serving.gateway.admission.admission import Admission
from serving.gateway.admission.auth import KEY, ApiKey, Keys
from serving.gateway.grpc.grpc_call import NAME
from serving.gateway.http.dialect import Route
from serving.gateway.http.handle_request import Router
from serving.gateway.server import app
from tests.serving.gateway.conftest import Gateway, MakeGateway
from tests.serving.gateway.grpc.test_grpc_front import Front
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


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.toml"
    path.write_text(
        entry("alice", "alice-key", max_concurrent_requests=1) + entry("bob", "bob-key")
    )
    return path


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
    async with Front(make_gateway(grpc_port=0, api_keys=file)) as front:
        methods = pb.DESCRIPTOR.services_by_name["Triptych"].methods
        for headers in WRONG:
            metadata = tuple(headers.items())
            for method in methods:
                call = front.channel.unary_stream(f"/{NAME}/{method.name}")(b"", metadata=metadata)
                with pytest.raises(grpc.RpcError) as refused:
                    async for _ in call:
                        pass
                assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED, method.name
            with pytest.raises(grpc.RpcError) as refused:
                await reflected(front, metadata)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert NAME in await reflected(front, tuple(RIGHT.items()))
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
    gateway.inference.hold = asyncio.Event()
    first = asyncio.create_task(post(gateway, "alice-key"))
    await until(lambda: gateway.inference.running == 1)
    refused = await post(gateway, "alice-key")
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "1"
    assert "1 requests with this key" in refused.json()["error"]["message"]
    others = [asyncio.create_task(post(gateway, "bob-key")) for _ in range(3)]
    await until(lambda: gateway.inference.running == 4)
    gateway.inference.hold.set()
    assert {answer.status_code for answer in await asyncio.gather(first, *others)} == {200}
    assert (await post(gateway, "alice-key")).status_code == 200


async def test_a_key_has_its_own_number_of_tokens(make_gateway: MakeGateway, file: Path) -> None:
    file.write_text(entry("alice", "alice-key", max_concurrent_tokens=4) + entry("bob", "bob-key"))
    gateway = make_gateway(api_keys=file)
    gateway.inference.hold = asyncio.Event()
    first = asyncio.create_task(post(gateway, "alice-key"))  # three tokens: two words and the end
    await until(lambda: gateway.inference.running == 1)
    refused = await post(gateway, "alice-key")
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    other = asyncio.create_task(post(gateway, "bob-key"))
    await until(lambda: gateway.inference.running == 2)
    gateway.inference.hold.set()
    assert {answer.status_code for answer in await asyncio.gather(first, other)} == {200}
    long = await post(gateway, "alice-key", ["uno dos tres cuatro cinco"])
    assert (long.status_code, long.json()["error"]["type"]) == (422, "invalid_request")
    assert (await post(gateway, "alice-key")).status_code == 200


async def test_tokens_are_freed_while_other_requests_of_the_key_run() -> None:
    admission = Admission(
        max_requests=9, max_tokens=99, max_pixels=99, max_bytes=99, max_sequences=9
    )
    KEY.set(ApiKey(name="alice", sha256="0" * 64, max_concurrent_tokens=6))
    with admission.request():
        for _ in range(2):
            with admission.reserved(6), pytest.raises(Overloaded), admission.reserved(1):
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
