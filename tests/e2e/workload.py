"""Requests against a running stack, and its state: processes, engine counters and shared memory."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import psutil

from examples.history.task_requests import as_png
from examples.scenes.scores import heldout_pictures
from examples.texts.grammar import sentences
from serving.liveness.stall_detector import EngineStats, read_engine_stats
from serving.local_http import request
from tests.e2e.conftest import ENCODERS, MODEL, TIMEOUT_S, Stack

SHARED_MEMORY = Path("/dev/shm")


def descendants(pid: int) -> set[int]:
    """Process ids below one, zombies included."""
    return {child.pid for child in psutil.Process(pid).children(recursive=True)}


def stub_of(pid: int, model: str) -> int:
    """Process id of the Triton stub that runs a model, below a process."""
    for child in descendants(pid):
        arguments = command_line(child)
        if "triton_python_backend_stub" in arguments[0] and any(
            f"/{model}/" in argument for argument in arguments[1:]
        ):
            return child
    raise AssertionError(f"no stub runs {model}")


def triton_of(stack: Stack) -> int:
    """Process id of `tritonserver`."""
    return next(pid for pid in alive_processes(stack) if "tritonserver" in command_line(pid)[0])


def engine_stats(stack: Stack, model: str = MODEL) -> EngineStats:
    """The counters that a model's engine published last."""
    flag = next(
        argument
        for argument in command_line(triton_of(stack))
        if argument.startswith("--metrics-port=")
    )
    server = f"127.0.0.1:{flag.partition('=')[2]}"
    return read_engine_stats(request(server, "GET", "/metrics", TIMEOUT_S).body.decode())[model]


def command_line(pid: int) -> list[str]:
    """Arguments of a process; one empty argument for a zombie and for a process that ended."""
    try:
        return psutil.Process(pid).cmdline() or [""]
    except psutil.Error:
        return [""]


def alive_processes(stack: Stack) -> set[int]:
    """Process ids below the stack's, without zombies, which hold nothing but their number."""
    return {pid for pid in descendants(stack.process.pid) if command_line(pid)[0]}


def open_files(stack: Stack) -> int:
    """Number of open file descriptors of all processes but the models' stubs."""
    stay = [pid for pid in alive_processes(stack) if "stub" not in command_line(pid)[0]]
    return sum(psutil.Process(pid).num_fds() for pid in stay)


def shm_prefix(stack: Stack) -> str:
    """Prefix of the names of the server's files in shared memory."""
    arguments = command_line(triton_of(stack))
    return next(a for a in arguments if "shm-region-prefix-name" in a).split("=")[-1]


def mapped_memory(stack: Stack) -> set[Path]:
    """Files of shared memory that any process of the stack has mapped."""
    paths = {
        Path(region.path)
        for pid in alive_processes(stack)
        for region in psutil.Process(pid).memory_maps()
    }
    return {path for path in paths if path.parent == SHARED_MEMORY}


def shared_memory(*prefixes: str) -> list[Path]:
    """Files of shared memory with these prefixes."""
    return [path for each in prefixes for path in SHARED_MEMORY.glob(f"{each}*")]


def resources(stack: Stack) -> tuple[int, int, int]:
    """Numbers of processes, open files and shared-memory regions that a stack holds."""
    return len(alive_processes(stack)), open_files(stack), len(shared_memory(shm_prefix(stack)))


async def idle(stack: Stack) -> bool:
    """Whether the engine reports to be idle twice, with a heartbeat between."""
    first = engine_stats(stack)
    await asyncio.sleep(0.6)
    second = engine_stats(stack)
    return not (first.is_busy or second.is_busy) and second.beats > first.beats


REQUEST = {"texts": ["el mundo no es suficiente"], "num_beams": 1}
TRANSLATION = "the world is not enough"


def paragraph(seed: int) -> list[str]:
    """Twelve sentences."""
    return [pair.spanish for pair in sentences("compositional", 12, seed=seed)]


async def answered(client: httpx.AsyncClient, texts: list[str]) -> str:
    """How a request ended: `answer`, or the error's name."""
    response = await client.post("/v1/translate", json={"texts": texts})
    if response.status_code == 200:
        assert len(response.json()["data"]) == len(texts)
        return "answer"
    return str(response.json()["error"]["type"])


async def streamed(client: httpx.AsyncClient, texts: list[str], begun: asyncio.Event) -> str:
    """How a stream ended: `answer`, or the error's name."""
    body = {"texts": texts, "num_beams": 1, "stream": True}
    async with client.stream("POST", "/v1/translate", json=body) as response:
        received = b""
        async for chunk in response.aiter_bytes():
            received += chunk
            if response.status_code == 200:
                begun.set()
    if received.endswith(b"data: [DONE]\n\n"):
        return "answer"
    found = re.search(rb'"type":"(\w+)"', received)
    assert found, f"a stream broke off: {received[-200:]!r}"
    return found[1].decode()


async def concurrent_load(
    client: httpx.AsyncClient, begun: asyncio.Event
) -> list[asyncio.Task[str]]:
    """32 requests, half of them streams, returned once the first stream has started."""
    work = [asyncio.create_task(answered(client, paragraph(seed))) for seed in range(16)]
    work += [asyncio.create_task(streamed(client, paragraph(16 + n), begun)) for n in range(16)]
    async with asyncio.timeout(TIMEOUT_S):
        await begun.wait()
    return work


async def until(claim: Callable[[], Awaitable[bool]]) -> float:
    """Seconds until a claim holds."""
    began = time.monotonic()
    async with asyncio.timeout(TIMEOUT_S):
        while not await claim():
            await asyncio.sleep(0.02)
    return time.monotonic() - began


async def serves(client: httpx.AsyncClient) -> bool:
    response = await client.post("/v1/translate", json=REQUEST)
    if response.status_code != 200:
        assert response.status_code in {429, 503}, response.text
        assert response.headers["retry-after"]
        return False
    assert response.json()["data"][0]["text"] == TRANSLATION
    return True


async def is_ready(client: httpx.AsyncClient) -> bool:
    return (await client.get("/ready")).status_code == 200


GENERATOR, CAPTIONER = "example-gpt", "example-captioner"
MODELS = (MODEL, GENERATOR, CAPTIONER, ENCODERS[0])
"""One of each kind; the last has a second part."""


class Load:
    """Requests of eight kinds, each different, and what they answer.

    Args:
        client: Sends them.
        of_each: How many of a kind, one to four.
    """

    def __init__(self, client: httpx.AsyncClient, of_each: int) -> None:
        self._client = client
        self.arrivals: list[list[float]] = []
        """Of the chunks of each stream of the last answers, on the monotonic clock."""
        pictures = [picture for _, picture in heldout_pictures(8, seed=7)]
        images = [base64.b64encode(as_png(one)).decode() for one in pictures]
        self._image = images[:1]
        continued = {"model": GENERATOR, "max_new_tokens": 200, "top_k": 40}
        continued |= {"logit_bias": {"0": -100}}  # no end, so that they run when they are killed
        self.requests: list[tuple[str, dict[str, object]]] = []
        for number in range(of_each):
            texts = {"texts": paragraph(number)}
            prompt = {"prompts": [f"{number} + {number} ="], "seed": number, **continued}
            image = {"images": images[2 * number : 2 * number + 2]}
            self.requests += [
                ("/v1/translate", {**texts, "num_beams": 1, "stream": True}),
                ("/v1/caption", {**image, "num_beams": 1, "stream": True}),
                ("/v1/generate", {**prompt, "stream": True, "logprobs": 2}),
                ("/v1/generate", {**prompt, "stream": True, "repetition_penalty": 1.2}),
                ("/v1/generate", {**prompt, "n": 2, "stop": ["zz"]}),
                ("/v1/translate", {**texts, "num_beams": 4, "n": 2}),
                ("/v1/caption", {**image, "num_beams": 3}),
                ("/v1/zero-shot", {**image, "labels": ["a circle", "a square", "red"]}),
            ]

    async def answers(self, begun: asyncio.Event) -> list[object]:
        """The answers of all, sent together."""
        self.arrivals = []
        return await asyncio.gather(*(self._answer(*one, begun) for one in self.requests))

    def stalls(self, at_s: float) -> list[float]:
        """Seconds from a moment to the next chunk of each stream that was read at that moment."""
        around = [times for times in self.arrivals if times[0] < at_s < times[-1]]
        return [min(one for one in times if one > at_s) - at_s for times in around]

    async def answer_of(self, model: str) -> object:
        """A short answer of one model."""
        small: dict[str, tuple[str, dict[str, object]]] = {
            MODEL: ("/v1/translate", {"texts": ["el mundo"], "num_beams": 1}),
            GENERATOR: ("/v1/generate", {"prompts": ["1 + 1 ="], "max_new_tokens": 2}),
            CAPTIONER: ("/v1/caption", {"images": self._image, "num_beams": 1}),
            ENCODERS[0]: ("/v1/zero-shot", {"images": self._image, "labels": ["a", "b"]}),
        }
        return await self._answer(*small[model], asyncio.Event())

    async def _answer(self, path: str, body: dict[str, object], begun: asyncio.Event) -> object:
        if not body.get("stream"):
            response = await self._client.post(path, json=body)
            assert response.status_code == 200, response.text
            return response.json()["data"]
        received, texts, reasons = b"", dict[int, str](), dict[int, str]()
        arrivals: list[float] = []
        async with self._client.stream("POST", path, json=body) as response:
            async for chunk in response.aiter_bytes():
                received += chunk
                arrivals.append(time.monotonic())
                if path == "/v1/generate":
                    begun.set()
        self.arrivals.append(arrivals)
        assert response.status_code == 200, received
        assert received.endswith(b"data: [DONE]\n\n"), received[-300:]
        records: dict[int, list[object]] = {}
        for line in re.findall(rb"^data: (\{.*\})$", received, re.M):
            found = json.loads(line)
            assert "error" not in found, found
            index = found["index"]
            texts[index] = texts.get(index, "") + found.get("text", "")
            records.setdefault(index, []).extend(found.get("logprobs") or [])
            if found.get("finish_reason"):
                reasons[index] = found["finish_reason"]
        return texts, reasons, records


def same(one: object, other: object) -> bool:
    """Whether two answers are equal; numbers up to rounding, which differs between batches."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, abs_tol=1e-4)
    return one == other


async def counted(client: httpx.AsyncClient, name: str) -> float:
    """The sum of a counter of the gateway over all models."""
    text = (await client.get("/metrics")).text
    return sum(map(float, re.findall(rf"^triptych_{name}_total\{{.*\}} (\S+)$", text, re.M)))
