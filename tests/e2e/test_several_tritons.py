"""Two Tritons behind one gateway: either is killed whole, and no request notices."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from examples.demo.server import free_port, wait_until_ready
from inference.bundle.repository import Repository
from tests.e2e.conftest import ENCODERS, MODEL, PROGRAM, TIMEOUT_S, Http, Stack, stop_stack
from tests.e2e.introspection import stub_of
from tests.e2e.mixed_load import GENERATOR, MODELS, Load, counted, same
from tests.e2e.workload import is_ready, until

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
        self._folder = folder
        self._name = name
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [
            *(*PROGRAM, "triton", "--repository", str(self._repository)),
            *("--state", str(self._folder / f"{self._name}.json")),
            f"--grpc-port={self.address.rpartition(':')[2]}",
            f"--metrics-port={self.metrics.rpartition(':')[2]}",
        ]
        with (self._folder / f"{self._name}.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, what: str) -> None:
        """End a model's process, or all processes at once, as the end of a machine would."""
        assert self.process is not None
        if what != WHOLE:
            os.kill(stub_of(self.process.pid, what), signal.SIGKILL)
            return
        family = psutil.Process(self.process.pid).children(recursive=True)
        for process in (psutil.Process(self.process.pid), *family):
            process.suspend()  # so that none sees the end of another
        for process in (psutil.Process(self.process.pid), *family):
            process.kill()
        self.process.wait(TIMEOUT_S)
        psutil.wait_procs(family, TIMEOUT_S)

    def stop(self) -> None:
        """SIGTERM; waits for the end."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(TIMEOUT_S) == 0

    def has(self, models: dict[str, int]) -> bool:
        """Whether these versions are loaded."""
        with InferenceServerClient(self.address) as client:
            try:
                return all(client.is_model_ready(*map(str, one)) for one in models.items())
            except InferenceServerException:
                return False

    async def until_ready(self, models: dict[str, int]) -> float:
        async def ready() -> bool:
            return await asyncio.to_thread(self.has, models)

        return await until(ready)


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
            started.callback(triton.stop)
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
    folder = tmp_path_factory.mktemp("several") / "model_repository"
    for part in (*MODELS, ENCODERS[1]):
        shutil.copytree(repository / part, folder / part)
    return folder


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
    several: Path,
    tmp_path: Path,
    http: Http,
    kills: int,
    record_property: Callable[[str, object], None],
) -> None:
    versions = loaded(several)
    with behind_one_gateway(several, tmp_path) as (stack, tritons):
        client = http(stack)
        for triton in tritons:
            await triton.until_ready(versions)
        load = Load(client)
        undisturbed = await load.answers(asyncio.Event())
        stalls: dict[bool, list[float]] = {False: [], True: []}
        for number, (place, what) in enumerate(victims(kills)):
            for one in tritons if what == WHOLE else tritons[place : place + 1]:
                await one.until_ready(versions)
            killed_s, answers = await answers_of_a_kill(load, tritons[place], what)
            stalls[what == WHOLE] += load.stalls(killed_s)
            for request, answer, wanted in zip(load.requests, answers, undisturbed, strict=True):
                assert same(answer, wanted), (number, what, request, answer, wanted)
            assert await is_ready(client), "the other server has every model"
        count, kept = [await counted(client, one) for one in ("resent_calls", "kept_tokens")]
        assert count >= kills
        assert kept, "no stream had begun when its server was killed"
        assert not await counted(client, "quarantined_calls")
        assert await counted(client, "endpoint_ejections") >= 3
        print(f"{kills} kills, {count:.0f} calls sent again, {kept:.0f} tokens kept")
        for name, seconds in zip(("model process", WHOLE), stalls.values(), strict=True):
            median_s, worst_s = statistics.median(seconds), max(seconds)
            record_property(f"median_stall_s of {name}", median_s)
            print(f"{name}: {len(seconds)} streams, median {median_s:.2f} s, worst {worst_s:.2f} s")


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
