"""Rolling updates and kills of Tritons and gateways under load, in a real swarm of one node.

Needs a Docker daemon and both images (`docker/README.md`); `SWARM_REPOSITORY` names a model
repository with `example-es-en` and `example-gpt` that user 10001 can read, else it is exported.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docker.swarm_cluster import (
    STACK,
    Balanced,
    RetryingLoad,
    balanced,
    containers,
    deployed,
    docker,
    ready,
    until_running,
)
from tests.e2e.conftest import MODEL, PROGRAM, repository, shared
from tests.e2e.workload import GENERATOR, same
from triptych import __version__

__all__ = ["repository", "shared"]

TRITONS, GATEWAYS = 3, 2
IMAGES = (f"triptych-triton:{__version__}", f"triptych-gateway:{__version__}")
PATHS = ("/v1/translate", "/v1/generate")
"""Of the two models; streams, beams, samples and stop strings among their requests."""
UPDATE = "--format={{.UpdateStatus.State}}"


def missing() -> str | None:
    """What this machine lacks for a swarm; None: nothing."""
    if shutil.which("docker") is None:
        return "no Docker client (Debian: docker.io)"
    try:
        for image in IMAGES:
            docker("image", "inspect", image)
        if docker("info", "--format={{.Swarm.LocalNodeState}}") != "active":
            docker("swarm", "init", "--advertise-addr=127.0.0.1", "--listen-addr=127.0.0.1:2377")
    except RuntimeError as error:
        return f"no Docker daemon with both images: {error}"
    return None


pytestmark = [pytest.mark.full, pytest.mark.integration]


@dataclass
class Swarm:
    """The running stack, its load, and the answers of the load when nothing happens."""

    load: RetryingLoad
    transport: Balanced
    undisturbed: list[object]

    async def under_load(self, happen: Callable[[], object]) -> int:
        """Let something happen while all requests are in flight, twice; rounds that were answered.

        Raises:
            AssertionError: an answer differs, or is an error.
        """
        done = asyncio.Event()

        async def rounds() -> int:
            number = 0
            while not number or not done.is_set():
                answers = await self.load.answers(begun)
                for request, answer, wanted in zip(
                    self.load.requests, answers, self.undisturbed, strict=True
                ):
                    assert same(answer, wanted), (request, answer, wanted)
                number += 1
            return number

        begun = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(rounds()) for _ in range(2)]
            await begun.wait()
            try:
                await asyncio.to_thread(happen)
                await until_running(TRITONS, GATEWAYS)
            finally:
                done.set()
        return sum(task.result() for task in running)


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A repository that user 10001 can read, and a file of keys."""
    if reason := missing():
        pytest.skip(reason)
    given = os.environ.get("SWARM_REPOSITORY")
    source = Path(given) if given else request.getfixturevalue("repository")
    with tempfile.TemporaryDirectory(prefix="triptych-swarm-") as name:
        path = Path(name)
        for model in (MODEL, GENERATOR):
            shutil.copytree(source / model, path / "models" / model)
        for each in (path, *path.rglob("*")):
            each.chmod(0o755 if each.is_dir() else 0o644)
        yield path


@pytest.fixture
async def swarm(folder: Path) -> AsyncIterator[Swarm]:
    keys = folder / "api-keys.toml"
    command = [*PROGRAM, "key", "load", "--file", str(keys)]
    made = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
    key = made.stdout.split()[-1]
    with deployed(folder / "models", keys, TRITONS, GATEWAYS):
        await until_running(TRITONS, GATEWAYS)
        async with balanced(key) as (client, transport):
            await ready(client)
            load = RetryingLoad(client)
            load.requests = [each for each in load.requests if each[0] in PATHS]

            yield Swarm(load, transport, await load.answers(asyncio.Event()))


def update(service: str) -> Callable[[], object]:
    """A rolling update of a service to another image; returns when it has ended."""

    def happen() -> None:
        following = f"triptych-{service}:next"
        docker("tag", f"triptych-{service}:{__version__}", following)
        arguments = ("--no-resolve-image", "--quiet", f"--image={following}", "--update-delay=5s")
        name = f"{STACK}_{service}"
        docker("service", "update", *arguments, name)
        while (state := docker("service", "inspect", UPDATE, name)) == "updating":
            time.sleep(1)
        assert state == "completed", docker("stack", "ps", "--no-trunc", STACK)

    return happen


def kill(service: str) -> Callable[[], object]:
    """The end of one container, by SIGKILL."""
    return lambda: docker("kill", containers(service)[0])


async def test_no_request_fails_in_updates_and_kills(
    swarm: Swarm, record_property: Callable[[str, object], None]
) -> None:
    events = {
        "kill of a triton": kill("triton"),
        "kill of a gateway": kill("gateway"),
        "update of the gateways": update("gateway"),
        "update of the tritons": update("triton"),
    }
    for name, happen in events.items():
        before = swarm.load.repeated, swarm.transport.refused
        resent = await swarm.transport.counted("resent_calls")
        kept = await swarm.transport.counted("kept_tokens")
        old = set(containers("triton") + containers("gateway"))
        rounds = await swarm.under_load(happen)
        replaced = len(old - set(containers("triton") + containers("gateway")))
        repeated = swarm.load.repeated - before[0]
        refused = swarm.transport.refused - before[1]
        record_property(name, (rounds, repeated, refused))
        print(
            f"{name}: {rounds * len(swarm.load.requests)} requests, {replaced} containers "
            f"replaced, {repeated} connections broke, {refused} requests sent to another gateway"
        )
        assert replaced == {"kill": 1, "upda": 3 if "tritons" in name else 2}[name[:4]]
        if name != "kill of a gateway":
            assert not repeated, "no client saw a broken connection"
        if "triton" in name:
            assert not refused, "no client noticed"
            resent = await swarm.transport.counted("resent_calls") - resent
            kept = await swarm.transport.counted("kept_tokens") - kept
            print(f"{name}: {resent:.0f} calls sent again, {kept:.0f} tokens kept")
            assert resent or kept, "requests were in flight at it"
