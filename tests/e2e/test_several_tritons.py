"""Two Tritons behind one gateway: either is killed whole, and no request notices."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import psutil
import pytest
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from examples.demo.server import free_port, wait_until_ready
from inference.bundle.repository import Repository
from tests.e2e.conftest import ENCODERS, MODEL, PROGRAM, TIMEOUT_S, Http, Stack, stop_stack
from tests.e2e.text_bundles import copy_models
from tests.e2e.workload import GENERATOR, MODELS, Load, counted, is_ready, same, stub_of, until

pytestmark = pytest.mark.integration

WHOLE = "whole"
VICTIMS = ((0, WHOLE), (1, MODEL), (1, WHOLE), (0, GENERATOR), (0, WHOLE))
"""Server and what is killed of it: everything, or the process of a model."""


class Triton:
    """A `triptych triton` with a repository that it shares with others."""

    def __init__(self, repository: Path, folder: Path, name: str) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.metrics = f"127.0.0.1:{free_port()}"
        self._repository = repository
        self._state = folder / f"{name}.json"
        self._log = folder / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [
            *(*PROGRAM, "triton", "--repository", str(self._repository), "--retire-after", "0"),
            *("--state", str(self._state)),
            f"--grpc-port={self.address.rpartition(':')[2]}",
            f"--metrics-port={self.metrics.rpartition(':')[2]}",
        ]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, what: str) -> None:
        """End a model's process, or all processes at once, as the end of a machine would."""
        if what != WHOLE:
            os.kill(stub_of(self.process.pid, what), signal.SIGKILL)
            return
        family = self.suspend()  # so that none sees the end of another
        for process in family:
            process.kill()
        self.process.wait(TIMEOUT_S)
        psutil.wait_procs(family[1:], TIMEOUT_S)

    def suspend(self) -> list[psutil.Process]:
        """Stop all processes; their connections stay open, as those of a machine that is gone."""
        own = psutil.Process(self.process.pid)
        family = [own, *own.children(recursive=True)]
        for process in family:
            process.suspend()
        return family

    def stop(self) -> None:
        """SIGTERM; waits for the end."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(TIMEOUT_S) == 0

    def end(self) -> None:
        """Stop it in whatever state it is."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(TIMEOUT_S)

    def has(self, models: dict[str, int]) -> bool:
        """Whether these versions are loaded."""
        with InferenceServerClient(self.address) as client:
            try:
                return all(client.is_model_ready(*map(str, one)) for one in models.items())
            except InferenceServerException:
                return False

    async def until_ready(self, models: dict[str, int]) -> None:
        async def ready() -> bool:
            assert self.process.poll() is None, "it has ended"
            return await asyncio.to_thread(self.has, models)

        try:
            await until(ready)
        except (AssertionError, TimeoutError) as error:
            raise AssertionError(f"{error!r}\n{self._log.read_text()[-4000:]}") from error


@contextmanager
def behind_one_gateway(
    repository: Path, folder: Path, *flags: str
) -> Iterator[tuple[Stack, list[Triton]]]:
    """A gateway over two Tritons, all of them ready."""
    tritons = [Triton(repository, folder, name) for name in ("first", "second")]
    http_port, grpc_port = free_port(), free_port()
    url, log = f"http://127.0.0.1:{http_port}", folder / "gateway.log"
    with ExitStack() as started, log.open("w+b") as sink:
        for triton in tritons:
            started.callback(triton.end)
            triton.start()
        command = [
            *(*PROGRAM, "gateway", "--repository", str(repository)),
            *("--triton", ",".join(one.address for one in tritons)),
            *("--triton-metrics", ",".join(one.metrics for one in tritons)),
            *("--http-port", str(http_port), "--grpc-port", str(grpc_port), *flags),
        ]
        process = subprocess.Popen(command, stdout=sink, stderr=sink)
        stack = Stack(process, url, f"127.0.0.1:{grpc_port}", repository, log)
        started.callback(stop_stack, stack)
        wait_until_ready(url, process, sink)
        yield stack, tritons


@pytest.fixture(scope="module")
def several(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a model of each kind."""
    return copy_models(repository, tmp_path_factory.mktemp("several"), (*MODELS, ENCODERS[1]))


@pytest.fixture(scope="module")
def pair(
    several: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Stack, list[Triton]]]:
    """A gateway over two Tritons; a test leaves both running, or starting."""
    with behind_one_gateway(several, tmp_path_factory.mktemp("pair")) as made:
        yield made


def loaded(repository: Path) -> dict[str, int]:
    """The newest version of each model of a repository (of Triton)."""
    found = Repository(repository)
    bundles = [found.complete(name)[0] for name in found.names()]
    return {model: bundle.version for bundle in bundles for model in bundle.models}


def victims(kills: int) -> Iterator[tuple[int, str]]:
    """The first ones, then any; more than half of them whole servers."""
    chance = random.Random(5)
    for number in range(kills):
        if number < len(VICTIMS):
            yield VICTIMS[number]
        else:
            yield chance.randrange(2), chance.choice((*MODELS, *[WHOLE] * 6))


@pytest.mark.parametrize("kills", [5, pytest.param(50, marks=pytest.mark.full)])
async def test_no_request_is_lost_with_a_server(
    pair: tuple[Stack, list[Triton]],
    http: Http,
    kills: int,
    record_property: Callable[[str, object], None],
) -> None:
    stack, tritons = pair
    client, versions = http(stack), loaded(stack.repository)
    load, undisturbed = await undisturbed_load(
        client, tritons, versions, of_each=2 if kills == 5 else 4
    )
    counters = "resent_calls", "kept_tokens", "quarantined_calls", "endpoint_ejections"
    before = [await counted(client, name) for name in counters]
    stalls: dict[bool, list[float]] = {False: [], True: []}
    for number, (place, what) in enumerate(victims(kills)):
        for one in tritons if what == WHOLE else tritons[place : place + 1]:
            await one.until_ready(versions)
        killed_s, answers = await answers_of_a_kill(load, tritons[place], what)
        stalls[what == WHOLE] += load.stalls(killed_s)
        for request, answer, wanted in zip(load.requests, answers, undisturbed, strict=True):
            assert same(answer, wanted), (number, what, request, answer, wanted)
        # After a model's process ended, the other server may still start again from its own end.
        assert what != WHOLE or await is_ready(client), "the other server has every model"
    after = [await counted(client, name) for name in counters]
    sent, kept, quarantined, ejections = (
        now - then for now, then in zip(after, before, strict=True)
    )
    assert sent >= kills
    assert kept, "no stream had begun when its server was killed"
    assert not quarantined
    assert ejections >= 3
    print(f"{kills} kills, {sent:.0f} calls sent again, {kept:.0f} tokens kept")
    for name, seconds in zip(("model process", WHOLE), stalls.values(), strict=True):
        median_s, worst_s = statistics.median(seconds), max(seconds)
        record_property(f"median_stall_s of {name}", median_s)
        print(f"{name}: {len(seconds)} streams, median {median_s:.2f} s, worst {worst_s:.2f} s")


@pytest.mark.full
async def test_streams_leave_a_server_that_is_stopped(
    pair: tuple[Stack, list[Triton]], http: Http
) -> None:
    """As a rolling update does it, which gives each server time to finish.

    Short requests follow meanwhile: one that is refused shows the gateway at once that the server
    stops. Its own check comes once a second, after which streams may have ended.
    """
    stack, tritons = pair
    client, versions = http(stack), loaded(stack.repository)
    load, undisturbed = await undisturbed_load(client, tritons, versions)
    before = await counted(client, "kept_tokens")
    begun = asyncio.Event()
    work = [asyncio.create_task(load.answers(begun)) for _ in range(2)]
    await begun.wait()
    stopped = asyncio.create_task(asyncio.to_thread(tritons[0].stop))
    while not stopped.done():
        await load.answer_of(GENERATOR)
    await stopped
    tritons[0].start()
    for answers in await asyncio.gather(*work):
        for request, answer, wanted in zip(load.requests, answers, undisturbed, strict=True):
            assert same(answer, wanted), (request, answer, wanted)
    assert await counted(client, "kept_tokens") > before, "streams go on elsewhere"


@pytest.mark.full
async def test_server_that_falls_silent_is_left(
    pair: tuple[Stack, list[Triton]], http: Http
) -> None:
    stack, tritons = pair
    client, versions = http(stack), loaded(stack.repository)
    load, undisturbed = await undisturbed_load(client, tritons, versions)
    begun = asyncio.Event()
    work = asyncio.create_task(load.answers(begun))
    await begun.wait()
    began = time.monotonic()
    await asyncio.to_thread(tritons[0].suspend)
    try:
        answers = await work
    finally:
        tritons[0].kill(WHOLE)
        tritons[0].start()
    print(f"all answered {time.monotonic() - began:.1f} s after the silence began")
    for request, answer, wanted in zip(load.requests, answers, undisturbed, strict=True):
        assert same(answer, wanted), (request, answer, wanted)


async def undisturbed_load(
    client: httpx.AsyncClient, tritons: list[Triton], versions: dict[str, int], of_each: int = 4
) -> tuple[Load, list[object]]:
    """The requests, and their answers while both servers run."""
    for triton in tritons:
        await triton.until_ready(versions)
    load = Load(client, of_each)
    return load, await load.answers(asyncio.Event())


async def answers_of_a_kill(load: Load, triton: Triton, what: str) -> tuple[float, list[object]]:
    """When something was killed, and the answers of the requests that were in flight."""
    begun = asyncio.Event()
    work = asyncio.create_task(load.answers(begun))
    async with asyncio.timeout(TIMEOUT_S):
        await begun.wait()
        killed_s = time.monotonic()
        await asyncio.to_thread(triton.kill, what)
        if what == WHOLE:
            triton.start()
        return killed_s, await work
