"""The gateway as a program: its ports, its signals, its end."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from examples.demo.server import free_port
from inference.bundle.manifest import MANIFEST
from serving.gateway.observability import background_tasks
from serving.gateway.requests import version_follower
from serving.gateway.server.run_server import _serve, run_gateway
from serving.ports import listening
from serving.settings.gateway_settings import GatewaySettings
from serving.triton.served import ServedVersions
from tests.inference.processing.test_text import byte_level
from tests.inference.tiny_models import manifest
from tests.serving.gateway.conftest import FakeInference
from tests.serving.waiting import until
from triptych import triptych_pb2 as pb
from triptych.triptych_pb2_grpc import TriptychStub


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one bundle that can be read (its graphs are never run here)."""
    publish_version(tmp_path, 3)
    return tmp_path


@pytest.fixture
def settings(repository: Path) -> GatewaySettings:
    return GatewaySettings(
        repository=repository,
        http_port=free_port(),
        grpc_port=free_port(),
        triton=f"127.0.0.1:{free_port()}",
        graceful_termination_timeout=5,
    )


@pytest.fixture(autouse=True)
def _frequent_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version_follower, "POLL_S", 0.05)


class Running:
    """The program in this process, over an in-memory `Inference`."""

    def __init__(self, settings: GatewaySettings) -> None:
        self.inference = FakeInference()
        self.url = f"http://127.0.0.1:{settings.http_port}"
        self.target = f"127.0.0.1:{settings.grpc_port}"
        self.http = httpx.AsyncClient(base_url=self.url)
        self._settings = settings

    async def __aenter__(self) -> "Running":
        self.task = asyncio.create_task(_serve(self._settings, lambda address: self.inference))
        async with asyncio.timeout(10):
            while True:
                try:
                    if (await self.http.get("/health")).status_code == 200:
                        return self
                except httpx.TransportError:
                    await asyncio.sleep(0.01)

    async def until(self, path: str, is_so: Callable[[httpx.Response], object]) -> None:
        """Wait for what a path returns."""
        async with asyncio.timeout(10):
            while not is_so(await self.http.get(path)):
                await asyncio.sleep(0.01)

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()
        if not self.task.done() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            # It handles no signals: one would end the tests' process without a word.
            self.task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.task
            return
        if not self.task.done():
            os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(10):
            await self.task


async def test_both_fronts_answer_and_sigterm_ends_them(settings: GatewaySettings) -> None:
    async with Running(settings) as running:
        answer = await running.http.post("/v1/translate", json={"texts": "hello"})
        assert answer.json()["data"][0]["text"] == "hello"
        async with grpc.aio.insecure_channel(running.target) as channel:
            request = pb.TranslateRequest(texts=["hello"])
            assert (await TriptychStub(channel).Translate(request)).data[0].text == "hello"
    assert running.inference.is_closed


async def test_signals_that_are_blocked_at_the_start_are_not_while_it_serves(
    settings: GatewaySettings,
) -> None:
    """A supervisor starts workers so that no signal ends one before it serves."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        async with Running(settings):
            assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])


def test_responses_are_sent_without_nagles_delay() -> None:
    with listening("127.0.0.1", 0, "HTTP") as listener:
        host, port = listener.getsockname()
        with socket.create_connection((host, port)):
            accepted, _ = listener.accept()
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            accepted.close()


async def held(
    running: Running, channel: grpc.aio.Channel
) -> tuple[asyncio.Future[httpx.Response], Any]:
    """A request over HTTP and one over gRPC, until `hold` is set."""
    running.inference.hold = asyncio.Event()
    work = asyncio.ensure_future(running.http.post("/v1/translate", json={"texts": "hello"}))
    call = TriptychStub(channel).Translate(pb.TranslateRequest(texts=["hello"]))
    await until(lambda: running.inference.running >= 2)
    return work, call


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_running_requests_finish_before_the_end(
    settings: GatewaySettings, number: signal.Signals
) -> None:
    async with Running(settings) as running:
        channel = grpc.aio.insecure_channel(running.target)
        work, call = await held(running, channel)
        os.kill(os.getpid(), number)
        async with httpx.AsyncClient(base_url=running.url) as late:
            while (await late.get("/ready")).status_code == 200:
                await asyncio.sleep(0.001)
            refused = await late.post("/v1/translate", json={"texts": "hello"})
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert (await late.get("/health")).status_code == 200
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await TriptychStub(channel).Translate(pb.TranslateRequest(texts=["hello"]))
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        running.inference.hold.set()
        assert (await work).status_code == 200
        assert (await call).data[0].text == "hello"
        await channel.close()


async def test_second_signal_ends_running_requests_with_an_error(settings: GatewaySettings) -> None:
    async with Running(settings) as running:
        channel = grpc.aio.insecure_channel(running.target)
        work, call = await held(running, channel)
        os.kill(os.getpid(), signal.SIGTERM)
        await running.until("/ready", lambda response: response.is_error)
        assert running.inference.running == 2
        os.kill(os.getpid(), signal.SIGTERM)
        answer = await work
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["error"]["type"] == "unavailable"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert running.inference.cancelled == 2
        await channel.close()


@pytest.mark.parametrize("signals", [1, 2])
async def test_stream_finishes_or_ends_with_an_error_event(
    settings: GatewaySettings, signals: int
) -> None:
    async with Running(settings) as running:
        running.inference.steps = steps = asyncio.Semaphore(4)
        body = {"texts": "one two three", "stream": True, "num_beams": 1}
        async with running.http.stream("POST", "/v1/translate", json=body) as answer:
            chunks = answer.aiter_bytes()
            told = await anext(chunks)
            for _ in range(signals):
                os.kill(os.getpid(), signal.SIGTERM)
                await running.until("/ready", lambda response: response.is_error)
            for _ in range(99 if signals == 1 else 0):
                steps.release()
            told += b"".join([chunk async for chunk in chunks])
    if signals == 1:
        assert told.endswith(b"data: [DONE]\n\n")
        assert b"error" not in told
    else:
        assert b"event: error" in told
        assert b'"type":"unavailable"' in told


async def test_disconnect_ends_a_stream(settings: GatewaySettings) -> None:
    body = {"texts": "hello to you", "num_beams": 1, "stream": True}
    async with Running(settings) as running:
        running.inference.steps = asyncio.Semaphore(3)  # a start token, two letters
        async with running.http.stream("POST", "/v1/translate", json=body) as answer:
            assert b'"text":"h' in await anext(answer.aiter_bytes())
        await until(lambda: running.inference.cancelled)
        assert running.inference.running == 0


async def test_requests_beyond_the_grace_end_with_an_error(settings: GatewaySettings) -> None:
    short = settings.model_copy(update={"graceful_termination_timeout": 0.0})
    async with Running(short) as running:
        running.inference.hold = asyncio.Event()
        work = asyncio.ensure_future(running.http.post("/v1/translate", json={"texts": "hello"}))
        await until(lambda: running.inference.running)
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(5):
            await running.task
        assert running.inference.cancelled == 1
        assert (await work).status_code == 503


async def test_request_whose_body_has_not_arrived_at_the_end_gets_an_error(
    settings: GatewaySettings, caplog: pytest.LogCaptureFixture
) -> None:
    short = settings.model_copy(update={"graceful_termination_timeout": 0.0})
    async with Running(short) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", short.http_port)
        writer.write(
            b"POST /v1/translate HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
            b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        )
        assert b" 100 " in await reader.readuntil(b"\r\n\r\n")  # the application reads the body
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(10):
            answer = await reader.read()
            await running.task
        writer.close()
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b'"type":"unavailable"' in answer
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("front", ["http_port", "grpc_port"])
def test_port_in_use_is_one_line_and_exit_code_1(
    settings: GatewaySettings, front: str, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run_gateway(settings.model_copy(update={front: port})) == 1
    assert f"127.0.0.1:{port}" in caplog.text
    assert "Traceback" not in caplog.text


def test_missing_repository_is_exit_code_1(
    settings: GatewaySettings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    missing = settings.model_copy(update={"repository": tmp_path / "missing"})
    assert run_gateway(missing) == 1
    assert "is not a folder" in caplog.text


def publish_version(repository: Path, version: int) -> None:
    folder = repository / "tiny-translate" / str(version)
    folder.mkdir(parents=True)
    spec = byte_level(folder)
    fields = manifest("translate", tokenizer=spec).model_copy(update={"version": version})
    for graph in fields.graphs.values():
        (folder / graph.file).touch()
    (folder / MANIFEST).write_text(fields.model_dump_json())


async def served_versions(running: Running) -> tuple[int, list[int]]:
    [model] = (await running.http.get("/v1/models")).json()["data"]
    return model["version"], model["versions"]


async def until_served(running: Running, expected: tuple[int, list[int]]) -> None:
    async with asyncio.timeout(10):
        while await served_versions(running) != expected:
            await asyncio.sleep(0.02)


async def test_first_bundle_of_an_empty_repository_is_served_once_triton_has_it(
    settings: GatewaySettings, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    async with Running(settings.model_copy(update={"repository": empty})) as running:
        refused = await running.http.get("/ready")
        assert (refused.status_code, "triptych export" in refused.text) == (503, True)
        assert (await running.http.post("/v1/translate", json={"texts": "a"})).status_code == 404
        publish_version(empty, 1)
        running.inference.served["tiny-translate"] = 1
        await running.until("/ready", lambda response: response.is_success)
        assert await served_versions(running) == (1, [1])
        answer = await running.http.post("/v1/translate", json={"texts": "a"})
        assert answer.json()["data"][0]["text"] == "a"


async def test_requests_go_to_the_version_that_triton_serves(settings: GatewaySettings) -> None:
    async with Running(settings) as running:
        served, calls = running.inference.served, running.inference.calls
        assert await served_versions(running) == (3, [3])
        publish_version(settings.repository, 4)
        await until_served(running, (3, [4, 3]))
        for version in (4, 3, 4):
            served["tiny-translate"] = version
            await until_served(running, (version, [4, 3]))
            await running.http.post("/v1/translate", json={"texts": "a"})
            assert calls[-1].version == version


@pytest.mark.parametrize("failure", [asyncio.CancelledError(), PermissionError(13, "denied")])
async def test_versions_are_followed_after_a_failure(
    settings: GatewaySettings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    failure: BaseException,
) -> None:
    monkeypatch.setattr(background_tasks, "FIRST_PAUSE_S", 0.001)
    async with Running(settings) as running:
        failures, served_version = [failure], FakeInference.served_version

        async def failing(self: FakeInference, model: str) -> int | None:
            if failures:
                raise failures.pop()
            return await served_version(self, model)

        monkeypatch.setattr(FakeInference, "served_version", failing)
        await until(lambda: not failures)
        publish_version(settings.repository, 4)
        running.inference.served["tiny-translate"] = 4
        await until_served(running, (4, [4, 3]))
        exposed = (await running.http.get("/metrics")).text
    assert 'triptych_background_failures_total{task="following of versions"} 1.0' in exposed
    assert "following of versions failed" in caplog.text


async def test_bundle_removed_from_repository_and_triton_is_served_no_more(
    settings: GatewaySettings,
) -> None:
    async with Running(settings) as running:
        shutil.rmtree(settings.repository / "tiny-translate")
        await running.until("/v1/models", lambda response: not response.json()["data"])


async def test_damaged_bundle_is_skipped_with_one_line(
    settings: GatewaySettings, caplog: pytest.LogCaptureFixture
) -> None:
    broken = settings.repository / "broken" / "1"
    broken.mkdir(parents=True)
    fields = json.loads(manifest("translate", name="broken").model_dump_json())
    fields["tokenizer"]["files"] = {"tokenizer": "tokenizer.json"}
    (broken / MANIFEST).write_text(json.dumps(fields))
    (broken / "tokenizer.json").write_text("damaged")
    async with Running(settings) as running:
        listed = (await running.http.get("/v1/models")).json()["data"]
    assert [model["id"] for model in listed] == ["tiny-translate"]
    assert "skipped broken" in caplog.text


async def test_loaded_objects_are_reported_before_the_first_request(
    settings: GatewaySettings,
) -> None:
    inference = FakeInference()
    loaded: list[int] = []
    serving = asyncio.create_task(
        _serve(
            settings,
            lambda address: inference,
            on_loaded=lambda: loaded.append(len(inference.calls)),
        )
    )
    await until(lambda: loaded)
    os.kill(os.getpid(), signal.SIGTERM)
    await serving
    assert loaded == [0]


def test_collector_skips_what_exists_at_the_start() -> None:
    program = (
        "import gc; from serving.gateway.server.run_server import _exempt_from_collection\n"
        "_exempt_from_collection()\n"
        "assert gc.get_freeze_count() > len(gc.get_objects()), gc.get_freeze_count()\n"
        "assert gc.isenabled() and gc.get_threshold()[0] > 700\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


async def test_readiness_says_where_models_are_not_checked(settings: GatewaySettings) -> None:
    async with Running(settings) as running:
        assert (await running.http.get("/ready")).json() == {}
        ServedVersions(settings.repository / "served.json", self_check=False).set_refused({})
        await running.until("/ready", lambda response: response.json() == {"self_check": "off"})
