"""A gateway of two workers over a real Triton: one of them is killed, limits hold over both."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.conftest import TIMEOUT_S, Stack, running
from tests.e2e.text_bundles import copy_models
from triptych import triptych_pb2 as pb
from triptych.triptych_pb2_grpc import TriptychStub

pytestmark = pytest.mark.integration

KEYS = {"admin": "", "few": "max_concurrent_requests = 2\n"}
TEXTS = ["Mi hermana trabaja en un restaurante famoso.", "¿Dónde está el gato negro de Pedro?"]
MODELS = ("example-es-en", "example-bert-sentiment")
PAUSE_S = 0.05
WORKER = "serving.gateway.server.worker"


def write_keys(file: Path, names: dict[str, str]) -> None:
    """The key of each name is `NAME-key`."""
    entries = []
    for name, limits in names.items():
        digest = hashlib.sha256(f"{name}-key".encode()).hexdigest()
        entries.append(f'[[keys]]\nname = "{name}"\nsha256 = "{digest}"\n{limits}')
    file.write_text("\n".join(entries))


def header(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}-key"}


@dataclass(frozen=True)
class Workers:
    """A stack with two workers."""

    stack: Stack
    keys: Path
    temporary: Path

    def pids(self) -> list[int]:
        children = psutil.Process(self.stack.process.pid).children(recursive=True)
        return [child.pid for child in children if WORKER in " ".join(_command(child))]

    def clients_of(self, pid: int) -> int:
        """Connections of clients to a worker."""
        addresses = self.stack.url, self.stack.grpc_address
        ports = {int(address.rpartition(":")[2]) for address in addresses}
        found = psutil.Process(pid).net_connections("tcp")
        return sum(one.status == "ESTABLISHED" and one.laddr.port in ports for one in found)

    @asynccontextmanager
    async def http(self, key: str = "admin") -> AsyncIterator[httpx.AsyncClient]:
        """A client with a connection of its own."""
        options = {"timeout": TIMEOUT_S, "trust_env": False, "verify": False}
        async with httpx.AsyncClient(
            base_url=self.stack.url, headers=header(key), **options
        ) as client:
            yield client

    @asynccontextmanager
    async def grpc(self) -> AsyncIterator[TriptychStub]:
        """A channel with a connection of its own."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(self.stack.grpc_address, options=options) as channel:
            yield TriptychStub(channel)

    async def metrics(self) -> dict[tuple[str, str], float]:
        """Each sample of `/metrics` that only grows, and the gauges, by name and labels."""
        async with self.http() as client:
            text = (await client.get("/metrics")).raise_for_status().text
        families = text_string_to_metric_families(text)
        return {
            (sample.name, str(sorted(sample.labels.items()))): sample.value
            for family in families
            for sample in family.samples
        }

    async def gauge(self, name: str) -> float:
        return (await self.metrics())[name, "[]"]

    async def until(self, name: str, expected: float) -> None:
        async with asyncio.timeout(30):
            while await self.gauge(name) != expected:
                await asyncio.sleep(0.1)


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


@pytest.fixture(scope="module")
def workers(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    folder = tmp_path_factory.mktemp("workers")
    models = copy_models(repository, folder, MODELS)
    keys, temporary = folder / "keys.toml", folder / "tmp"
    temporary.mkdir()
    write_keys(keys, KEYS)
    environment = {"TRIPTYCH_WORKERS": 2, "TRIPTYCH_API_KEYS": keys, "TMPDIR": temporary}
    with running(models, folder, **environment) as stack:
        yield Workers(stack, keys, temporary)
    assert not list(temporary.glob("triptych-gateway-*")), "files of the run are left"


@dataclass
class Load:
    """Clients over HTTP and gRPC, each with its own connection; they pause between requests.

    Without pauses they would take the processors that the next worker needs for its start.
    """

    workers: Workers
    answered: int = 0
    failures: list[tuple[int, str]] = field(default_factory=list)
    """Numbers of clients, and what they saw."""
    _is_over: bool = False

    async def __aenter__(self) -> Load:
        self._clients = [asyncio.create_task(self._http_client(number)) for number in range(8)]
        grpc_clients = map(self._grpc_client, range(8, 16))
        self._clients += [asyncio.create_task(client) for client in grpc_clients]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_over = True
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.gather(*self._clients)

    async def answers(self, count: int) -> None:
        """Wait for so many more."""
        goal = self.answered + count
        async with asyncio.timeout(TIMEOUT_S):
            while self.answered < goal:
                await asyncio.sleep(0.01)

    async def _http_client(self, number: int) -> None:
        while not self._is_over:
            async with self.workers.http() as client:
                try:
                    while not self._is_over:
                        body = {"texts": TEXTS[self.answered % 2]}
                        response = await client.post("/v1/translate", json=body)
                        assert response.status_code == 200, response.text
                        assert response.json()["data"][0]["text"]
                        self.answered += 1
                        await asyncio.sleep(PAUSE_S)
                except httpx.TransportError as error:
                    self.failures.append((number, type(error).__name__))

    async def _grpc_client(self, number: int) -> None:
        metadata = tuple(header("admin").items())
        while not self._is_over:
            async with self.workers.grpc() as stub:
                try:
                    while not self._is_over:
                        request = pb.ClassifyRequest(texts=["what a lovely day"])
                        answer = await stub.Classify(request, metadata=metadata)
                        assert answer.data[0].labels[0].label
                        self.answered += 1
                        await asyncio.sleep(PAUSE_S)
                except grpc.aio.AioRpcError as error:
                    self.failures.append((number, str(error.code())))


def grown(before: dict[tuple[str, str], float], after: dict[tuple[str, str], float]) -> None:
    """No counter or bucket has fallen."""
    for name, value in before.items():
        if name[0].endswith(("_total", "_bucket", "_count", "_sum")):
            assert after[name] >= value, name


def successes(metrics: dict[tuple[str, str], float]) -> float:
    """Of the requests that `Load` sends, and others like them."""
    routes = ("/v1/translate", "/triptych.v1.Triptych/Classify")
    name = "triptych_request_success_total"
    return sum(metrics.get((name, f"[('route', '{route}')]"), 0.0) for route in routes)


async def test_killed_worker_costs_its_own_requests_only(workers: Workers) -> None:
    await workers.until("triptych_workers", 2)
    metrics = await workers.metrics()
    successes_before = successes(metrics)
    async with Load(workers) as load:
        await load.answers(100)
        assert not load.failures
        for _ in range(5):
            before, metrics = metrics, await workers.metrics()
            grown(before, metrics)
        killed = max(workers.pids(), key=workers.clients_of)  # another may have none
        affected = workers.clients_of(killed)
        assert affected >= 8
        await load.answers(10)
        os.kill(killed, signal.SIGKILL)
        deadline_s = time.monotonic() + 30
        while metrics["triptych_worker_restarts_total", "[]"] < 1 or len(workers.pids()) < 2:
            before, metrics = metrics, await workers.metrics()
            grown(before, metrics)
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.1)
        await workers.until("triptych_workers", 2)
        await load.answers(100)
        # None, if all responses were on their way. The kernel closes a killed process's sockets one
        # after the other: a client may reach its listener meanwhile, and fail once more.
        assert len({number for number, _ in load.failures}) <= affected, load.failures
        assert all("." not in seen or "UNAVAILABLE" in seen for _, seen in load.failures)
        assert killed not in workers.pids()
        assert len(workers.pids()) == 2
    await workers.until("triptych_tokens_in_flight", 0)
    counted = successes(await workers.metrics()) - successes_before
    assert 0 <= counted - load.answered <= len(load.failures)
    log = workers.stack.log.read_text()  # of both kinds of clients: one kind may have one worker
    serving = re.findall(r"route=(?:/v1/translate|\S+/Classify) .*worker=(\d)", log)
    assert {"1", "2"} <= set(serving)


async def test_limit_of_a_key_holds_over_workers_and_leaks_nothing(workers: Workers) -> None:
    async def one(client: httpx.AsyncClient) -> int:
        return (await client.post("/v1/translate", json={"texts": TEXTS * 4})).status_code

    async def lone() -> int:
        async with workers.http("few") as client:
            return await one(client)

    statuses = await asyncio.gather(*(lone() for _ in range(24)))
    assert set(statuses) == {200, 429}
    assert [await lone() for _ in range(8)] == [200] * 8


@pytest.mark.full
async def test_keys_are_read_again_by_all_workers(workers: Workers) -> None:
    async def status() -> int:
        async with workers.http("carol") as client:
            return (await client.post("/v1/classify", json={"texts": "good"})).status_code

    for names, expected in ((KEYS | {"carol": ""}, 200), (KEYS, 401)):
        assert {await status() for _ in range(8)} == {601 - expected}
        write_keys(workers.keys, names)
        await asyncio.sleep(1.2)
        assert {await status() for _ in range(16)} == {expected}


@pytest.mark.full
async def test_translated_file_is_fetched_from_any_worker(workers: Workers) -> None:
    async with workers.http() as client:
        form = {"source": "es", "target": "en"}
        files = {"file": ("a.txt", TEXTS[0].encode())}
        answer = await client.post("/translate_file", data=form, files=files)
        url = answer.raise_for_status().json()["translatedFileUrl"]
    for _ in range(12):
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.get(url)).text.startswith("My sister works")


@pytest.mark.full
async def test_stacks_of_all_workers_are_written(workers: Workers) -> None:
    gateway = psutil.Process(workers.pids()[0]).parent()
    before = workers.stack.log.read_text().count("Current thread")
    gateway.send_signal(signal.SIGUSR2)
    async with asyncio.timeout(10):
        while workers.stack.log.read_text().count("Current thread") < before + 3:
            await asyncio.sleep(0.05)
    assert len(workers.pids()) == 2


@pytest.mark.full
async def test_health_is_of_any_worker(workers: Workers) -> None:
    for path in ("/health", "/ready"):
        for _ in range(6):
            async with workers.http() as client:
                assert (await client.get(path)).status_code == 200
