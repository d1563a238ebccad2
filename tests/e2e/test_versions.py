"""A repository that changes while it is served: reload, rollback, crashes, broken versions.

Supervisor and gateway run as two processes that share only the repository and Triton, as in two
containers. Every answer names the version that made it (`tests/serving/versioned_bundles.py`).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from serving.ports import free_ports
from serving.triton import process
from serving.triton.stubs import running_stubs
from tests.serving.versioned_bundles import publish_version

pytestmark = pytest.mark.integration

NAME = "speaker"
PROGRAM = (sys.executable, "-m", "triptych")
LIMIT_S = 60.0


class Site:
    """`triptych triton` and `triptych gateway` over one repository, as two processes."""

    def __init__(self, folder: Path) -> None:
        self.repository = folder / "model_repository"
        self.repository.mkdir()
        self._logs = folder
        self._ports = free_ports(
            "127.0.0.1", dict.fromkeys(("http", "grpc", "metrics", "front", "front grpc"), 0)
        )
        self.url = f"http://127.0.0.1:{self._ports['front']}"
        self.triton: subprocess.Popen[bytes] | None = None
        self.gateway: subprocess.Popen[bytes] | None = None

    def start_triton(self) -> None:
        flags = [f"--{name}-port={self._ports[name]}" for name in ("http", "grpc", "metrics")]
        self.triton = self._start("triton", *flags)

    def start_gateway(self) -> None:
        ports = self._ports
        self.gateway = self._start(
            "gateway",
            *(f"--http-port={ports['front']}", f"--grpc-port={ports['front grpc']}"),
            *("--triton", f"127.0.0.1:{ports['grpc']}"),
            *("--triton-metrics", f"127.0.0.1:{ports['metrics']}"),
        )

    def _start(self, command: str, *flags: str) -> subprocess.Popen[bytes]:
        with (self._logs / f"{command}.log").open("ab") as log:
            return subprocess.Popen(
                [*PROGRAM, command, "--repository", str(self.repository), *flags],
                stdout=log, stderr=log,
            )  # fmt: skip

    def stop(self) -> None:
        for child in (self.gateway, self.triton):
            if child is not None and child.poll() is None:
                child.terminate()
                child.wait(LIMIT_S)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*PROGRAM, *arguments, "--repository", str(self.repository)]
        return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)

    def server(self) -> int:
        """Process id of tritonserver."""
        assert self.triton is not None
        return process.children(self.triton.pid)[0].pid

    def stub(self) -> int:
        """Process id of the newest process of the model."""
        stubs = running_stubs(self.server(), self.repository.resolve())
        return max(pid for pids in stubs.values() for pid in pids)

    def is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/ready", trust_env=False, timeout=20).is_success
        except httpx.TransportError:
            return False

    def version(self) -> int:
        """The version that answers now."""
        body = {"prompts": "a", "max_new_tokens": 1}
        response = httpx.post(f"{self.url}/v1/generate", json=body, trust_env=False, timeout=20)
        return int(response.raise_for_status().json()["data"][0]["text"].removeprefix("v"))

    def serves(self, version: int) -> bool:
        try:
            return self.version() == version
        except httpx.HTTPError:
            return False


def wait_until(claim: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not claim():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site that begins with an empty repository."""
    made = Site(tmp_path_factory.mktemp("site"))
    made.start_triton()
    made.start_gateway()
    try:
        yield made
    finally:
        made.stop()


class Load:
    """Concurrent requests until `stop`; each record is (start, end, status, text)."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._is_over = False
        self.records: list[tuple[float, float, int, str]] = []

    async def __aenter__(self) -> Load:
        self._clients = [asyncio.create_task(self._client(number)) for number in range(8)]
        await asyncio.sleep(0.5)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(1.5)
        self._is_over = True
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*self._clients)

    async def _client(self, number: int) -> None:
        body = {"prompts": ["a"] * (1 + number % 3), "max_new_tokens": 1 + 150 * (number % 4)}
        async with httpx.AsyncClient(timeout=LIMIT_S, trust_env=False) as http:
            while not self._is_over:
                began = time.monotonic()
                response = await http.post(f"{self._url}/v1/generate", json=body)
                is_good = response.status_code == 200
                items = response.json()["data"] if is_good else []
                text = " ".join(item["text"] or "" for item in items) or response.text
                self.records.append((began, time.monotonic(), response.status_code, text))

    def check_switch(self, before: int, after: int) -> None:
        """Every request was answered by one version, and none by the old after the new."""
        assert {status for _, _, status, _ in self.records} == {200}
        versions = [set(text.split()) for _, _, _, text in self.records]
        assert {frozenset(each) for each in versions} == {
            frozenset({f"v{before}"}),
            frozenset({f"v{after}"}),
        }
        first_new = min(end for (_, end, _, text) in self.records if f"v{after}" in text)
        late = [text for began, _, _, text in self.records if began > first_new]
        assert late
        assert all(f"v{before}" not in text.split() for text in late)


def test_first_export_into_an_empty_repository_is_served_by_itself(site: Site) -> None:
    wait_until(lambda: httpx.get(f"{site.url}/health", trust_env=False).is_success)
    assert not site.is_ready()
    assert publish_version(site.repository) == 1
    wait_until(lambda: site.serves(1))
    wait_until(site.is_ready)
    unchanged = site.run("reload")
    assert (unchanged.returncode, unchanged.stderr) == (0, "")
    assert "nothing changed" in unchanged.stdout


async def test_reload_under_load_loses_nothing(site: Site) -> None:
    assert publish_version(site.repository) == 2
    async with Load(site.url) as load:
        reloaded = await asyncio.to_thread(site.run, "reload", NAME)
        assert reloaded.returncode == 0, reloaded.stderr
        assert "version 2 is served, version 1 was" in reloaded.stdout
    load.check_switch(1, 2)
    models = httpx.get(f"{site.url}/v1/models", trust_env=False).json()["data"]
    assert [(model["version"], model["versions"]) for model in models] == [(2, [2, 1])]


async def test_rollback_under_load_loses_nothing_and_survives_crashes(site: Site) -> None:
    async with Load(site.url) as load:
        rolled_back = await asyncio.to_thread(site.run, "rollback", NAME)
        assert rolled_back.returncode == 0, rolled_back.stderr
    load.check_switch(2, 1)
    os.kill(site.stub(), signal.SIGKILL)
    wait_until(lambda: site.serves(1) and site.is_ready())
    os.kill(site.server(), signal.SIGKILL)
    wait_until(lambda: site.serves(1) and site.is_ready())
    assert site.triton is not None
    site.triton.kill()
    site.triton.wait()
    site.start_triton()
    wait_until(lambda: site.serves(1) and site.is_ready())
    too_far = site.run("rollback", NAME)
    assert (too_far.returncode, too_far.stdout) == (1, "")
    assert "no version older than 1" in too_far.stderr
    assert site.run("reload").returncode == 0
    wait_until(lambda: site.serves(2))


async def test_versions_published_under_load_change_nothing_until_a_crash_is_over(
    site: Site,
) -> None:
    """Two exports later the served version is neither the newest nor the one before it."""
    assert (publish_version(site.repository), publish_version(site.repository)) == (3, 4)
    async with Load(site.url) as load:
        await asyncio.sleep(0.2)
        os.kill(site.stub(), signal.SIGKILL)
        await asyncio.to_thread(wait_until, lambda: site.serves(2) and site.is_ready())
        os.kill(site.server(), signal.SIGKILL)
        await asyncio.to_thread(wait_until, lambda: site.serves(2) and site.is_ready())
    assert {status for _, _, status, _ in load.records} <= {200, 503}
    answers = {text for _, _, status, text in load.records if status == 200}
    assert {word for text in answers for word in text.split()} == {"v2"}
    assert site.run("reload", NAME).returncode == 0
    wait_until(lambda: site.serves(4) and site.is_ready())


def test_version_that_does_not_load_leaves_the_old_one_serving(site: Site) -> None:
    broken = publish_version(site.repository)
    graph = site.repository / NAME / str(broken) / "step.onnx"
    graph.write_bytes(graph.read_bytes()[:100])
    refused = site.run("reload", NAME)
    assert (refused.returncode, refused.stdout) == (1, "")
    [line] = refused.stderr.splitlines()
    assert "Triton cannot load" in line
    assert "; version 4 is served" in line
    assert site.serves(4)
    assert site.is_ready()
    graph.unlink()
    incomplete = site.run("reload", NAME)
    assert incomplete.returncode == 1
    assert "step.onnx is missing" in incomplete.stderr
    shutil.rmtree(graph.parent)


def test_unknown_name_and_missing_service_are_one_line_each(site: Site, tmp_path: Path) -> None:
    unknown = site.run("reload", "nothing")
    assert (unknown.returncode, len(unknown.stderr.splitlines())) == (1, 1)
    assert NAME in unknown.stderr
    elsewhere = Site(tmp_path).run("reload")
    assert (elsewhere.returncode, len(elsewhere.stderr.splitlines())) == (1, 1)
    assert "runs on" in elsewhere.stderr


def test_watch_serves_what_is_published(site: Site) -> None:
    command = [*PROGRAM, "reload", "--watch", "--repository", str(site.repository)]
    watching = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        version = publish_version(site.repository)
        wait_until(lambda: site.serves(version))
    finally:
        watching.send_signal(signal.SIGINT)
        assert watching.wait(LIMIT_S) == 130
