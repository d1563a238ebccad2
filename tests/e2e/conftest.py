"""The whole stack, started once: the examples exported, a real Triton, the gateway."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import pytest

from examples.bundles import examples
from examples.bundles import main as bundles_command
from examples.demo.server import free_port, wait_until_ready
from tests.e2e.interleaved import export_interleaved
from tests.e2e.text_bundles import TextBundles, copy_models, export_text_bundles
from tests.export.operators import operators_read_once
from tests.shared_folders import made_once, shared_folder
from triptych import Client
from triptych.client.grpc_client import GrpcClient

CHECKPOINTS = Path(__file__).parents[2] / "examples" / "checkpoints"
MODEL = "example-es-en"
"""The one that is killed, stopped and overloaded."""
ENCODERS = ("example-clip", "example-clip-text")
TIMEOUT_S = 60.0
"""Seconds after which a test fails as hung; far above every expected duration."""
_LOG_TAIL = 20_000
_STOP_S = 150
"""The gateway and Triton stop one after the other and have a minute each; then they are killed."""
_SECOND_SIGNAL_S = 0.3
PROGRAM = (sys.executable, "-m", "triptych")


Http = Callable[["Stack"], httpx.AsyncClient]


@dataclass(frozen=True)
class Stack:
    """A running `triptych serve`."""

    process: subprocess.Popen[bytes]
    url: str
    grpc_address: str
    repository: Path
    log: Path


def start_stack(repository: Path, log: Path) -> Stack:
    """`triptych serve` on free ports, ready; what it prints goes to `log`."""
    http_port, grpc_port = free_port(), free_port()
    command = [
        *(*PROGRAM, "serve", "--repository", str(repository)),
        *("--http-port", str(http_port), "--grpc-port", str(grpc_port)),
        *("--glossaries", str(log.with_name("glossaries"))),
    ]
    url = f"http://127.0.0.1:{http_port}"
    with log.open("w+b") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=sink)
        try:
            wait_until_ready(url, process, sink)
        except BaseException:
            process.terminate()
            process.wait(_STOP_S)
            raise
    return Stack(process, url, f"127.0.0.1:{grpc_port}", repository, log)


def stop_stack(stack: Stack, *, at_once: bool = False) -> int:
    """SIGTERM, as an orchestrator would; the exit code.

    Args:
        at_once: Whether a second one follows, by which Triton ends without looking for requests.
    """
    stack.process.send_signal(signal.SIGTERM)
    if at_once:
        with contextlib.suppress(subprocess.TimeoutExpired):
            stack.process.wait(_SECOND_SIGNAL_S)
        stack.process.send_signal(signal.SIGTERM)
    code = stack.process.wait(timeout=_STOP_S)
    if code:
        end = stack.log.read_text(errors="replace")[-_LOG_TAIL:]
        pytest.fail(f"the stack stopped with exit code {code}:\n{end}", pytrace=False)
    return code


@contextmanager
def running(repository: Path, folder: Path, **environment: object) -> Iterator[Stack]:
    """A separate stack with settings from environment variables, which ends at once."""
    before = dict(os.environ)
    os.environ.update({name: str(value) for name, value in environment.items()})
    try:
        stack = start_stack(repository, folder / "serve.log")
    finally:
        os.environ.clear()
        os.environ.update(before)
    try:
        yield stack
    finally:
        if stack.process.poll() is None:
            stop_stack(stack, at_once=True)


@pytest.fixture(scope="session")
def shared(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Path]:
    """A folder that parallel test workers have in common, because exporting is slow."""
    with operators_read_once():
        yield shared_folder(tmp_path_factory, request.config)


@pytest.fixture(scope="session")
def repository(shared: Path) -> Path:
    """A model repository with all examples, as `make export` fills it.

    Two workers that need it at once export one half each.
    """

    def export(half: int, folder: Path) -> None:
        names = ["bundles", "--repository", str(folder), *map(str, examples()[half::2])]
        with pytest.MonkeyPatch.context() as patch:  # in this process, which has loaded torch
            patch.setattr(sys, "argv", names)
            bundles_command()

    def unite(folder: Path) -> None:
        for half in halves.values():
            shutil.copytree(half, folder, dirs_exist_ok=True)

    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    halves = {
        half: made_once(shared / f"examples-{half}", partial(export, half))
        for half in (worker % 2, 1 - worker % 2)
    }
    return made_once(shared / "example-repository", unite)


@pytest.fixture(scope="session")
def stack(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    running = start_stack(repository, tmp_path_factory.mktemp("log") / "serve.log")
    try:
        yield running
    finally:
        stop_stack(running)


@pytest.fixture(scope="module")  # some files have a stack of their own
def client(stack: Stack) -> Iterator[Client]:
    with Client(stack.url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")  # some files have a stack of their own
def grpc_client(stack: Stack) -> Iterator[GrpcClient]:
    with GrpcClient(stack.grpc_address, timeout=60) as client:
        yield client


@pytest.fixture(scope="session")
def bundles(shared: Path) -> TextBundles:
    """Tiny random checkpoints of `transformers`, exported."""
    return TextBundles.below(made_once(shared / "texts", export_text_bundles))


@pytest.fixture(scope="session")
def tiny_stack(bundles: TextBundles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One stack that serves all of `bundles`."""
    with running(bundles.repository, tmp_path_factory.mktemp("log")) as stack:
        yield stack


@pytest.fixture(scope="session")
def interleaved(shared: Path) -> Path:
    """A folder with a small random Idefics, whose prompts hold images, and its bundle."""
    return made_once(shared / "interleaved", export_interleaved)


def client_over(protocol: str, stack: Stack) -> Client | GrpcClient:
    """A client over "http" or "grpc"."""
    if protocol == "http":
        return Client(stack.url, timeout=60)
    return GrpcClient(stack.grpc_address, timeout=60)


@pytest.fixture(scope="session", params=["http", "grpc"])
def tiny_client(request: pytest.FixtureRequest, tiny_stack: Stack) -> Iterator[Client | GrpcClient]:
    """A client of `tiny_stack` over each protocol."""
    with client_over(request.param, tiny_stack) as made:
        yield made


@pytest.fixture(scope="module")
def translator(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the translator alone, so that restarts are quick."""
    return copy_models(repository, tmp_path_factory.mktemp("alive"), (MODEL,))


@pytest.fixture(scope="module")
def both_backends(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the translator and the encoders: models of each backend."""
    return copy_models(repository, tmp_path_factory.mktemp("both"), (MODEL, *ENCODERS))


@pytest.fixture
async def http() -> AsyncIterator[Callable[[Stack], httpx.AsyncClient]]:
    """Makes clients that never reuse a connection: an idle one may be closed any time."""
    made: list[httpx.AsyncClient] = []

    def make(stack: Stack) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        made.append(httpx.AsyncClient(base_url=stack.url, timeout=TIMEOUT_S, limits=limits))
        return made[-1]

    yield make
    for client in made:
        await client.aclose()
