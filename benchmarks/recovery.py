"""`python -m benchmarks.recovery`: model processes are killed under load, one each second.

Requests are sent without retries, so that what a client sees is what the service does. Each answer
is compared with that of the same request before the first kill, and its time with the request's
median then: what it took longer is how long it waited for a model.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import os
import random
import re
import shutil
import signal
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psutil
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from benchmarks.harness.machine import processor
from benchmarks.load.payloads import DEFAULT_TASKS, IMAGES, Payload, Payloads, served
from examples.demo.server import serving
from serving.triton.stubs import running_stubs
from triptych import Client
from triptych.tasks import TASKS

MODELS = (
    *("example-es-en", "example-bert-embed", "example-gpt", "example-captioner", "example-vqa"),
    *("example-bert", "example-clip", "example-clip-text"),
)
_LONGEST_HEALING_S = 120.0
_TIMEOUT_S = 60.0
_JSON = {"content-type": "application/json"}


class Load:
    """Closed loops over a fixed set of requests, whose answers are known.

    Attributes:
        waited_s: Of each answer, what it took beyond the request's own time, and all that it took.
        lost: Requests without an answer, and why.
        different: Answers that are not the request's.
    """

    def __init__(self, http: httpx.AsyncClient, payloads: Sequence[Payload]) -> None:
        self._http = http
        self._payloads = payloads
        self._wanted: dict[Payload, Any] = {}
        self._own_s: dict[Payload, float] = {}
        self.waited_s: list[tuple[float, float, str]] = []
        self.lost: list[str] = []
        self.different: list[str] = []

    async def learn(self, in_flight: int) -> None:
        """Note each request's answer and time, under the same load."""
        seconds: dict[Payload, list[float]] = defaultdict(list)

        async def ask(payload: Payload) -> None:
            async with places:
                began_s = time.monotonic()
                answer = await self._answer(payload)
                seconds[payload].append(time.monotonic() - began_s)
                if not same(answer, self._wanted.setdefault(payload, answer)):
                    raise SystemExit(f"{payload.route} answers differently without kills")

        places = asyncio.Semaphore(in_flight)
        for _ in range(5):
            await asyncio.gather(*map(ask, self._payloads))
        self._own_s = {payload: statistics.median(each) for payload, each in seconds.items()}

    async def run(self, in_flight: int, over: asyncio.Event) -> None:
        """Keep so many requests in flight until it is over."""

        async def loop(first: int) -> None:
            for number in itertools.count(first, in_flight):
                if over.is_set():
                    return
                await self._ask(self._payloads[number % len(self._payloads)])

        await asyncio.gather(*map(loop, range(in_flight)))

    async def _ask(self, payload: Payload) -> None:
        began_s = time.monotonic()
        try:
            answer = await self._answer(payload)
        except (httpx.HTTPError, ValueError, KeyError) as error:
            took_s = time.monotonic() - began_s
            self.lost.append(f"{payload.route} after {took_s:.1f} s: {error!r}"[:300])
            return
        took_s = time.monotonic() - began_s
        self.waited_s.append((took_s - self._own_s[payload], took_s, payload.route))
        if not same(answer, self._wanted[payload]):
            self.different.append(f"{payload.route}: {answer!r}"[:300])

    async def _answer(self, payload: Payload) -> Any:
        """What is compared of a response.

        Raises:
            ValueError: it is none.
        """
        response = await self._http.post(payload.path, content=payload.body, headers=_JSON)
        if response.status_code != 200:
            raise ValueError(f"HTTP {response.status_code} {response.text}")
        if not response.headers["content-type"].startswith("text/event-stream"):
            return response.json()["data"]
        if not response.text.endswith("data: [DONE]\n\n") or '"error"' in response.text:
            raise ValueError(response.text)
        texts: dict[int, str] = defaultdict(str)
        for line in re.findall(r"^data: (\{.*\})$", response.text, re.M):
            chunk = json.loads(line)
            texts[chunk["index"]] += chunk.get("text", "")
        return texts

    def report(self) -> None:
        """Print what became of the requests."""
        waited = sorted(self.waited_s)
        print(
            f"{len(waited) + len(self.lost)} requests, {len(self.lost)} lost, "
            f"{len(self.different)} answered differently"
        )
        for line in [*self.lost[:5], *self.different[:5]]:
            print("  ", line)
        for share in (0.5, 0.9, 0.99, 1.0):
            beyond_s, took_s, route = waited[max(0, math.ceil(share * len(waited)) - 1)]
            print(
                f"  {share:4.0%} waited at most {beyond_s:.2f} s ({route}, {took_s:.2f} s in all)"
            )


def same(one: Any, other: Any) -> bool:
    """Whether two answers are equal; numbers up to rounding, which differs between batches."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, abs_tol=1e-4)
    return bool(one == other)


class Processes:
    """Triton below this process, and its models' processes."""

    def __init__(self) -> None:
        self._server = next(
            each for each in psutil.Process().children(recursive=True) if _is_server(each)
        )
        arguments = dict(each.partition("=")[::2] for each in self._server.cmdline())
        self._triton = InferenceServerClient(f"127.0.0.1:{arguments['--grpc-port']}")
        self.servers = {self._server.pid}
        """All that have been seen: a restarted Triton is another one, at the same address."""

    def of(self, model: str) -> set[int]:
        """The running processes of a model."""
        if not self._server.is_running():
            found = psutil.Process().children(recursive=True)
            self._server = next(filter(_is_server, found), self._server)
            self.servers.add(self._server.pid)
        stubs = running_stubs(self._server.pid).items()
        return {pid for (name, _), pids in stubs if name == model for pid in pids}

    async def healing_s(self, model: str, killed: int) -> float:
        """Seconds until another process of a model has loaded it."""
        began_s = time.monotonic()
        while time.monotonic() < began_s + _LONGEST_HEALING_S:
            if self.of(model) - {killed} and await self._is_ready(model):
                return time.monotonic() - began_s
            await asyncio.sleep(0.02)
        return math.inf

    async def _is_ready(self, model: str) -> bool:
        try:
            return bool(await self._triton.is_model_ready(model, client_timeout=1.0))
        except InferenceServerException:
            return False

    def shared_bytes(self) -> int:
        """Of all shared memory of this machine."""
        used = os.statvfs("/dev/shm")
        return (used.f_blocks - used.f_bfree) * used.f_frsize

    def describe(self) -> str:
        """What Triton holds."""
        memory = self._server.memory_info().rss >> 20
        return (
            f"Triton {memory} MiB, {self._server.num_threads()} threads, "
            f"{self._server.num_fds()} files; shared memory {self.shared_bytes() >> 20} MiB"
        )


def _is_server(process: psutil.Process) -> bool:
    try:
        return Path(process.cmdline()[0]).name == "tritonserver"
    except (psutil.Error, IndexError):
        return False


async def measure(url: str, payloads: list[Payload], options: argparse.Namespace) -> None:
    """Answers before the kills, then the kills; prints what was seen."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=_TIMEOUT_S, limits=limits) as http:
        load, over = Load(http, payloads), asyncio.Event()
        await load.learn(options.in_flight)
        processes = Processes()
        print(processes.describe())
        work = asyncio.create_task(load.run(options.in_flight, over))
        healings = [
            healing
            async for healing in _kills(processes, options.models, options.kills, options.every)
        ]
        found = await asyncio.gather(*healings)
        over.set()
        await work
        print(processes.describe())
    load.report()
    seconds = sorted(found)
    print(
        f"{len(found)} kills, Triton started {len(processes.servers) - 1} times; healed in "
        f"{statistics.median(seconds):.2f} s (median), {seconds[-1]:.2f} s (longest): "
        + " ".join(f"{each:.1f}" for each in found)
    )


async def _kills(
    processes: Processes, models: Sequence[str], kills: int, every_s: float
) -> AsyncIterator[asyncio.Task[float]]:
    """Kill one process at a time, of the models in turn; one that is not up yet is passed over."""
    began_s, turn = time.monotonic(), itertools.cycle(models)
    for number in range(kills):
        await asyncio.sleep(max(0.0, began_s + number * every_s - time.monotonic()))
        while not (pids := processes.of(model := next(turn))):
            await asyncio.sleep(0.01)
        os.kill(pid := min(pids), signal.SIGKILL)
        yield asyncio.create_task(processes.healing_s(model, pid))


def chosen(payloads: Payloads, routes: Sequence[str], number: int) -> list[Payload]:
    """So many different requests of each route; every second one of a generator is a stream."""
    found = []
    for route in routes:
        drawn = dict.fromkeys(payloads.draw(route) for _ in range(4 * number))
        for index, payload in enumerate(list(drawn)[:number]):
            if index % 2 and TASKS[route].streams:
                body = json.dumps({**json.loads(payload.body), "stream": True})
                payload = replace(payload, body=body.encode())
            found.append(payload)
    random.Random(0).shuffle(found)
    return found


def main() -> None:
    """Serve some models, kill their processes, print what became of the requests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repository", type=Path, default=Path("model_repository"))
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two kills")
    parser.add_argument("--in-flight", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for model in options.models:
            shutil.copytree(options.repository / model, Path(folder) / model)
        with serving(Path(folder)) as url:
            with Client(url) as client:
                models = client.models().data
            routes = served(models, DEFAULT_TASKS)
            payloads = chosen(Payloads(routes, 0, IMAGES, routes), list(routes), 4)
            print(f"on {processor()}; {len(models)} bundles, tasks {', '.join(routes)}")
            asyncio.run(measure(url, payloads, options))


if __name__ == "__main__":
    main()
