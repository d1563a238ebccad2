"""A repository that changes while it is served: reload, rollback, crashes, broken versions.

Supervisor and gateway run as two processes that share only the repository and Triton, as in two
containers. Every answer names the version that made it (`tests/serving/versioned_bundles.py`).
"""

from __future__ import annotations

import asyncio
import base64
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tritonclient.grpc import InferenceServerClient

from inference.bundle.reader import versions
from serving.ports import free_ports
from serving.processes import process_table
from serving.triton.stubs import running_stubs
from tests.inference.tiny_models import image_file
from tests.serving.versioned_bundles import publish_towers, publish_version

pytestmark = pytest.mark.integration

NAME = "speaker"
PROGRAM = (sys.executable, "-m", "triptych")
LIMIT_S = 180.0
CLIENTS, PAUSE_S = 8, 0.02
PROMPTS, TOKENS = 32, 4000
"""Of a stream that outlasts a reload."""
PICTURE = base64.b64encode(image_file("red")).decode()
_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE = 24, 1


class Site:
    """`triptych triton` and `triptych gateway` over one repository, as two processes."""

    def __init__(self, folder: Path) -> None:
        self.repository = folder / "model_repository"
        self.repository.mkdir(mode=0o555)
        self._folder = folder
        self._state = f"--state={folder / 'served.json'}"
        self._ports = free_ports(
            "127.0.0.1", dict.fromkeys(("http", "grpc", "metrics", "front", "front grpc"), 0)
        )
        self.url = f"http://127.0.0.1:{self._ports['front']}"
        self.triton: subprocess.Popen[bytes] | None = None
        self.gateway: subprocess.Popen[bytes] | None = None
        # One, which keeps no connection: each new client reads the system's certificates.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._http = httpx.Client(trust_env=False, timeout=20, limits=limits)

    def start_triton(self, *flags: str) -> None:
        ports = [f"--{name}-port={self._ports[name]}" for name in ("http", "grpc", "metrics")]
        self.triton = self._start("triton", self._state, *ports, *flags)

    def start_gateway(self, *flags: str) -> None:
        ports = self._ports
        self.gateway = self._start(
            "gateway",
            self._state,
            *(f"--http-port={ports['front']}", f"--grpc-port={ports['front grpc']}"),
            *("--triton", f"127.0.0.1:{ports['grpc']}"),
            *("--triton-metrics", f"127.0.0.1:{ports['metrics']}"),
            *flags,
        )

    def _start(self, command: str, *flags: str) -> subprocess.Popen[bytes]:
        with (self._folder / f"{command}.log").open("ab") as log:
            return subprocess.Popen(
                [*PROGRAM, command, "--repository", str(self.repository), *flags],
                stdout=log, stderr=log, preexec_fn=obey_access_rights,
            )  # fmt: skip

    def publish(self, how: Callable[..., int] = publish_version, **options: Any) -> int:
        """Publish a version, then take the right to write away again."""
        self._chmod(0o755)
        try:
            return how(self.repository, **options)
        finally:
            self._chmod(0o555)

    def _chmod(self, mode: int) -> None:
        self.repository.chmod(mode)
        for model in self.repository.iterdir():
            model.chmod(mode)

    def log(self, command: str) -> str:
        return (self._folder / f"{command}.log").read_text()

    def stop(self) -> None:
        for child in (self.gateway, self.triton):
            if child is not None and child.poll() is None:
                child.terminate()
                child.wait(LIMIT_S)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*PROGRAM, *arguments, "--repository", str(self.repository)]
        return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)

    def versions(self) -> list[int]:
        """Those of the generator in the repository, the newest first."""
        return versions(self.repository / NAME)

    def remove(self, version: int) -> None:
        """Remove a version of the generator."""
        self._chmod(0o755)
        shutil.rmtree(self.repository / NAME / str(version))
        self._chmod(0o555)

    def classifies(self) -> bool:
        return self._http.post(f"{self.url}/v1/embed", json={"images": [PICTURE]}).is_success

    def has(self, version: int) -> bool:
        """Whether Triton takes requests for a version of the generator."""
        with InferenceServerClient(f"127.0.0.1:{self._ports['grpc']}") as client:
            return bool(client.is_model_ready(NAME, str(version)))

    def server(self) -> int:
        """Process id of tritonserver."""
        return next(iter(process_table.children(self.triton.pid)))

    def stub(self) -> int:
        """Process id of the newest process of the generator."""
        stubs = running_stubs(self.server())
        return max(pid for (name, _), pids in stubs.items() if name == NAME for pid in pids)

    def is_ready(self) -> bool:
        return self._succeeds("ready")

    def refused(self) -> list[dict[str, Any]]:
        """Versions that do not load, when the gateway has read of them."""
        wait_until(lambda: bool(self._http.get(f"{self.url}/v1/models").json()["refused"]))
        found: list[dict[str, Any]] = self._http.get(f"{self.url}/v1/models").json()["refused"]
        return found

    def is_live(self) -> bool:
        return self._succeeds("health")

    def _succeeds(self, path: str) -> bool:
        try:
            return self._http.get(f"{self.url}/{path}").is_success
        except httpx.TransportError:
            return False

    def version(self) -> int:
        """The version that answers now."""
        body = {"prompts": "a", "max_new_tokens": 1}
        response = self._http.post(f"{self.url}/v1/generate", json=body)
        return int(response.raise_for_status().json()["data"][0]["text"].removeprefix("v"))

    def serves(self, version: int) -> bool:
        try:
            return self.version() == version
        except httpx.HTTPError:
            return False


def obey_access_rights() -> None:
    """Take from this process, if it is root's, the right to write where it has no access."""
    ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE, 0, 0, 0)


def wait_until(claim: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not claim():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


@contextmanager
def running(folder: Path) -> Iterator[Site]:
    """A site that begins with an empty repository."""
    made = Site(folder)
    made.start_triton()
    made.start_gateway()
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The site of all tests, in whatever state the last one left it."""
    with running(tmp_path_factory.mktemp("site")) as made:
        yield made


@pytest.fixture
def empty(shared: Site, tmp_path: Path) -> Iterator[Site]:
    """A site with an empty repository: the shared one, unless another test has published."""
    if not any(shared.repository.iterdir()):
        yield shared
        return
    with running(tmp_path) as made:
        yield made


@pytest.fixture
def site(shared: Site) -> Site:
    """The shared site, which serves its newest version."""
    if not shared.versions():
        shared.publish()
    wait_until(shared.is_live)
    wait_until(shared.is_ready)
    if shared.version() != shared.versions()[0]:
        assert shared.run("reload", NAME).returncode == 0
        wait_until(lambda: shared.serves(shared.versions()[0]))
    return shared


Ask = Callable[[httpx.AsyncClient, str, int], Awaitable[tuple[int, str]]]
"""Sends a client's next request; returns the status and the versions that its answer names."""


async def generate(http: httpx.AsyncClient, url: str, number: int) -> tuple[int, str]:
    """Every other request is streamed; they have 1 to 3 prompts and up to 450 tokens."""
    body = {"prompts": ["a"] * (1 + number % 3), "max_new_tokens": 1 + 150 * (number % 4)}
    if number % 2:
        return await _streamed(http, f"{url}/v1/generate", {**body, "stream": True})
    response = await http.post(f"{url}/v1/generate", json=body)
    items = response.json().get("data", [])
    failed = any(item.get("error") for item in items)
    text = " ".join(item.get("text") or "" for item in items) or response.text
    return 503 if failed else response.status_code, text


async def _streamed(
    http: httpx.AsyncClient, url: str, body: dict, begun: asyncio.Event | None = None
) -> tuple[int, str]:
    """The same of a stream; its first chunk sets the event."""
    texts: dict[int, str] = {}
    async with http.stream("POST", url, json=body) as response:
        if response.status_code != 200:
            return response.status_code, (await response.aread()).decode()
        async for line in response.aiter_lines():
            if not line.startswith("data: "):
                continue
            data = line.removeprefix("data: ")
            if data == "[DONE]":
                assert all(len(set(text.split())) == 1 for text in texts.values())
                return 200, " ".join(texts.values())
            chunk = json.loads(data)
            if chunk.get("error"):
                return 503, data
            if begun is not None:
                begun.set()
            texts[chunk["index"]] = texts.get(chunk["index"], "") + chunk["text"]
    return 503, "the stream broke off"


async def generate_many(http: httpx.AsyncClient, url: str, number: int) -> tuple[int, str]:
    """Streams of more calls than there are turns at Triton."""
    body = {"prompts": ["a"] * 6, "max_new_tokens": 300, "stream": True}
    return await _streamed(http, f"{url}/v1/generate", body)


async def classify(http: httpx.AsyncClient, url: str, number: int) -> tuple[int, str]:
    """An image against two new labels: towers of one version see 1 and -1, of two versions 0."""
    labels = [f"x{number}", f"v1 y{number}"]
    body = {"images": [PICTURE], "labels": labels, "templates": ["{}"]}
    response = await http.post(f"{url}/v1/zero-shot", json=body)
    if response.status_code != 200:
        return response.status_code, response.text
    [item] = response.json()["data"]
    assert [score["cosine"] for score in item["labels"]] == [1, -1]
    embedded = await http.post(f"{url}/v1/embed", json={"images": [PICTURE]})
    if embedded.status_code != 200:
        return embedded.status_code, embedded.text
    return 200, f"v{embedded.json()['data'][0]['embedding'].index(1)}"


class Load:
    """Concurrent requests until the block ends; each record is (start, end, status, text)."""

    def __init__(self, url: str, ask: Ask = generate) -> None:
        self._url = url
        self._ask = ask
        self._is_over = False
        self.running = 0
        self.records: list[tuple[float, float, int, str]] = []

    async def __aenter__(self) -> Load:
        self._clients = [asyncio.create_task(self._client(number)) for number in range(CLIENTS)]
        await asyncio.sleep(0.5)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(1.5)  # gateways look for versions once a second
        self._is_over = True
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*self._clients)

    async def _client(self, number: int) -> None:
        async with httpx.AsyncClient(timeout=LIMIT_S, trust_env=False) as http:
            while not self._is_over:
                began = time.monotonic()
                self.running += 1
                status, text = await self._ask(http, self._url, number)
                self.running -= 1
                self.records.append((began, time.monotonic(), status, text))
                number += CLIENTS + 1  # another shape of request the next time
                await asyncio.sleep(PAUSE_S)  # the processors are for the reload, too

    def check_switch(self, before: int, after: int) -> None:
        """Every request was answered by one version, and none by the old after the new."""
        failures = [(status, text) for _, _, status, text in self.records if status != 200]
        assert not failures, f"{len(failures)} of {len(self.records)} lost: {failures[:3]}"
        versions = [set(text.split()) for _, _, _, text in self.records]
        assert {frozenset(each) for each in versions} == {
            frozenset({f"v{before}"}),
            frozenset({f"v{after}"}),
        }
        first_new = min(end for (_, end, _, text) in self.records if f"v{after}" in text)
        late = [text for began, _, _, text in self.records if began > first_new]
        assert late
        assert all(f"v{before}" not in text.split() for text in late)


def test_services_cannot_write_the_repository(shared: Site) -> None:
    write = subprocess.run(
        ["touch", str(shared.repository / "file")],
        preexec_fn=obey_access_rights, capture_output=True, check=False,
    )  # fmt: skip
    assert write.returncode != 0


def test_first_export_into_an_empty_repository_is_served_by_itself(empty: Site) -> None:
    wait_until(empty.is_live)
    assert not empty.is_ready()
    assert empty.publish() == 1
    wait_until(lambda: empty.serves(1))
    wait_until(empty.is_ready)
    unchanged = empty.run("reload")
    assert (unchanged.returncode, unchanged.stderr) == (0, "")
    assert "nothing changed" in unchanged.stdout


async def test_reload_under_load_loses_nothing(site: Site) -> None:
    before, after = site.version(), site.publish()
    async with Load(site.url) as load:
        reloaded = await asyncio.to_thread(site.run, "reload", NAME)
        assert reloaded.returncode == 0, reloaded.stderr
        assert f"version {after} is served, version {before} was" in reloaded.stdout
    load.check_switch(before, after)
    models = httpx.get(f"{site.url}/v1/models", trust_env=False).json()["data"]
    [model] = [model for model in models if model["id"] == NAME]
    assert (model["version"], model["versions"][:2]) == (after, [after, before])


async def test_rollback_under_load_loses_nothing_and_survives_crashes(site: Site) -> None:
    if len(site.versions()) == 1:
        site.publish()
        assert site.run("reload", NAME).returncode == 0
    after, before, *others = site.versions()
    for other in others:
        site.remove(other)
    wait_until(lambda: site.serves(after))
    async with Load(site.url) as load:
        rolled_back = await asyncio.to_thread(site.run, "rollback", NAME)
        assert rolled_back.returncode == 0, rolled_back.stderr
    load.check_switch(after, before)
    os.kill(site.stub(), signal.SIGKILL)
    wait_until(lambda: site.serves(before) and site.is_ready())
    os.kill(site.server(), signal.SIGKILL)
    wait_until(lambda: site.serves(before) and site.is_ready())
    site.triton.kill()
    site.triton.wait()
    site.start_triton("--retire-after=0")
    wait_until(lambda: site.serves(before) and site.is_ready())
    too_far = site.run("rollback", NAME)
    assert (too_far.returncode, too_far.stdout) == (1, "")
    assert f"no version older than {before}" in too_far.stderr
    assert site.run("reload").returncode == 0
    wait_until(lambda: site.serves(after))


async def test_versions_published_under_load_change_nothing_until_a_crash_is_over(
    site: Site,
) -> None:
    """Two exports later the served version is neither the newest nor the one before it."""
    served, _, newest = site.version(), site.publish(), site.publish()
    async with Load(site.url) as load:
        await asyncio.sleep(0.2)
        os.kill(site.stub(), signal.SIGKILL)
        await asyncio.to_thread(wait_until, lambda: site.serves(served) and site.is_ready())
        os.kill(site.server(), signal.SIGKILL)
        await asyncio.to_thread(wait_until, lambda: site.serves(served) and site.is_ready())
    assert {status for _, _, status, _ in load.records} <= {200, 503}
    answers = {text for _, _, status, text in load.records if status == 200}
    assert {word for text in answers for word in text.split()} == {f"v{served}"}
    assert site.run("reload", NAME).returncode == 0
    wait_until(lambda: site.serves(newest) and site.is_ready())


@pytest.mark.full  # about ten seconds
async def test_reload_loses_nothing_though_the_old_version_is_unloaded_at_once(
    site: Site,
) -> None:
    """One stream lasts until the old version is unloaded, others wait for their turn behind it.

    A stream that had begun all its calls before would end them on the old version, and never find
    it gone: those of a fast machine did.
    """
    site.stop()
    site.start_triton("--retire-after=0")
    site.start_gateway("--max-concurrent-sequences=2")
    wait_until(site.is_live)
    wait_until(site.is_ready)
    before, after = site.version(), site.publish()
    begun = asyncio.Event()
    body = {"prompts": ["a"] * PROMPTS, "max_new_tokens": TOKENS, "stream": True}
    body |= {"logit_bias": {"0": -100}}  # one step a call
    async with httpx.AsyncClient(timeout=LIMIT_S, trust_env=False) as http:
        stream = asyncio.create_task(_streamed(http, f"{site.url}/v1/generate", body, begun))
        await begun.wait()
        async with Load(site.url, generate_many) as load:
            reloaded = await asyncio.to_thread(site.run, "reload", NAME)
            await asyncio.to_thread(wait_until, lambda: not site.has(before))
            assert not stream.done(), "it lasts until then"
        status, text = await stream
    assert reloaded.returncode == 0, reloaded.stderr
    failures = [(status, text) for _, _, status, text in load.records if status != 200]
    assert not failures, f"{len(failures)} of {len(load.records)} lost: {failures[:3]}"
    assert site.version() == after
    assert status == 200, text
    versions = Counter(text.split())
    assert versions.keys() == {f"v{before}", f"v{after}"}, "it met the switch"
    assert versions.total() == PROMPTS * TOKENS


def test_version_that_does_not_load_leaves_the_old_one_serving(site: Site) -> None:
    before, broken = site.version(), site.publish()
    graph = site.repository / NAME / str(broken) / "step.onnx"
    graph.write_bytes(graph.read_bytes()[:100])
    refused = site.run("reload", NAME)
    assert (refused.returncode, refused.stdout) == (1, "")
    [line] = refused.stderr.splitlines()
    assert "Triton cannot load" in line
    assert f"; version {before} is served" in line
    assert site.serves(before)
    assert site.is_ready()
    [listed] = site.refused()
    assert (listed["id"], listed["version"]) == (NAME, broken)
    assert "Triton cannot load" in listed["reason"]
    graph.unlink()
    incomplete = site.run("reload", NAME)
    assert incomplete.returncode == 1
    assert "step.onnx is missing" in incomplete.stderr
    assert f"; version {before} is served" in incomplete.stderr
    site.remove(broken)


@pytest.mark.parametrize("file", ["tokenizer.json", "bundle.json"])
def test_version_that_no_gateway_could_read_leaves_the_old_one_serving(
    site: Site, file: str
) -> None:
    before, broken = site.version(), site.publish()
    damaged = site.repository / NAME / str(broken) / file
    damaged.write_bytes(damaged.read_bytes()[:50])
    refused = site.run("reload", NAME)
    assert (refused.returncode, refused.stdout) == (1, "")
    [line] = refused.stderr.splitlines()
    assert str(damaged.parent) in line
    assert f"; version {before} is served" in line
    assert site.serves(before)
    assert site.is_ready()
    assert "cannot serve" not in site.log("gateway")
    site.remove(broken)


async def test_parts_switch_together_under_load(site: Site) -> None:
    """The second time their configurations differ, so the two versions cannot overlap."""
    assert site.publish(publish_towers) == 1
    wait_until(site.classifies)
    for version, axes in ((2, 16), (3, 24)):
        assert site.publish(publish_towers, axes=axes) == version
        async with Load(site.url, classify) as load:
            reloaded = await asyncio.to_thread(site.run, "reload", "towers")
            assert reloaded.returncode == 0, reloaded.stderr
        load.check_switch(version - 1, version)


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
        version = site.publish()
        wait_until(lambda: site.serves(version))
    finally:
        watching.send_signal(signal.SIGINT)
        assert watching.wait(LIMIT_S) == 130
