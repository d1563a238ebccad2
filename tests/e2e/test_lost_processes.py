"""Model processes are killed under requests of every kind: each answer is the undisturbed one."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import re
import shutil
import signal
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from examples.history.task_requests import as_png
from examples.scenes.scores import heldout_pictures
from serving.triton.supervisor import MAX_DEAD_STUBS
from tests.e2e.conftest import ENCODERS, MODEL, TIMEOUT_S, Http, running, stop_stack
from tests.e2e.introspection import descendants, resources, shared_memory, shm_prefix, stub_of
from tests.e2e.workload import is_ready, paragraph, until

pytestmark = pytest.mark.integration

GENERATOR, CAPTIONER = "example-gpt", "example-captioner"
VICTIMS = (MODEL, GENERATOR, CAPTIONER, ENCODERS[0])
Ask = Callable[[asyncio.Event], Awaitable[object]]
"""Sends a request and returns its answer; sets the event when a stream has begun."""


@pytest.fixture(scope="module")
def several(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a model of each kind."""
    folder = tmp_path_factory.mktemp("lost") / "model_repository"
    for part in (*VICTIMS, ENCODERS[1]):
        shutil.copytree(repository / part, folder / part)
    return folder


class Load:
    """32 requests, each different, and what they answer."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        pictures = [picture for _, picture in heldout_pictures(8, seed=7)]
        images = [base64.b64encode(as_png(one)).decode() for one in pictures]
        self._image = images[:1]
        continued = {"model": GENERATOR, "max_new_tokens": 200, "top_k": 40}
        self.requests: list[tuple[str, dict[str, object]]] = []
        for number in range(4):
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
        return await asyncio.gather(*(self._answer(*one, begun) for one in self.requests))

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
            return _rounded(response.json()["data"])
        received, texts, reasons = b"", dict[int, str](), dict[int, str]()
        async with self._client.stream("POST", path, json=body) as response:
            async for chunk in response.aiter_bytes():
                received += chunk
                if path == "/v1/generate":
                    begun.set()
        assert response.status_code == 200, received
        assert received.endswith(b"data: [DONE]\n\n"), received[-300:]
        records: dict[int, list[object]] = {}
        for line in re.findall(rb"^data: (\{.*\})$", received, re.M):
            found = json.loads(line)
            assert "error" not in found, found
            index = found["index"]
            texts[index] = texts.get(index, "") + found.get("text", "")
            records.setdefault(index, []).extend(_rounded(found.get("logprobs") or []))
            if found.get("finish_reason"):
                reasons[index] = found["finish_reason"]
        return texts, reasons, records


def _rounded(value: object) -> object:
    """The value with its numbers to three places: batches differ in the last bits."""
    if isinstance(value, float):
        return round(value, 3) + 0.0
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return value


async def resent(client: httpx.AsyncClient) -> float:
    """Calls that were sent again so far."""
    text = (await client.get("/metrics")).text
    return sum(map(float, re.findall(r"^triptych_resent_calls_total\{.*\} (\S+)$", text, re.M)))


@pytest.mark.parametrize("kills", [len(VICTIMS), pytest.param(50, marks=pytest.mark.full)])
async def test_no_request_is_lost_with_the_process_of_its_model(
    several: Path,
    tmp_path: Path,
    http: Http,
    kills: int,
    record_property: Callable[[str, object], None],
) -> None:
    chance = random.Random(5)
    with running(several, tmp_path) as stack:
        client = http(stack)
        await until(lambda: is_ready(client))
        load = Load(client)
        undisturbed = await load.answers(asyncio.Event())
        assert await load.answers(asyncio.Event()) == undisturbed, "batches change the answers"
        assert await resent(client) == 0
        prefixes = {shm_prefix(stack)}
        first = resources(stack)
        recoveries, durations = [], []
        for number in range(kills):
            begun = asyncio.Event()
            work = asyncio.create_task(load.answers(begun))
            victim = VICTIMS[number % len(VICTIMS)]
            async with asyncio.timeout(TIMEOUT_S):
                await begun.wait()
                for _ in range(chance.randrange(40)):  # turns, so that all phases are met
                    await is_ready(client)
            os.kill(stub_of(stack.process.pid, victim), signal.SIGKILL)
            began = time.monotonic()
            async with asyncio.timeout(TIMEOUT_S):
                assert await load.answer_of(victim)
                recoveries.append(time.monotonic() - began)
                answers = await work
            durations.append(time.monotonic() - began)
            for request, answer, wanted in zip(load.requests, answers, undisturbed, strict=True):
                assert answer == wanted, (number, victim, request)
            prefixes.add(shm_prefix(stack))
            processes, files, regions = resources(stack)
            assert processes <= first[0]
            assert files <= first[1] + 32, "each dead process may keep one, eight at most"
            assert regions <= first[2] + MAX_DEAD_STUBS
        count = await resent(client)
        assert count >= kills
        record_property("median_recovery_s", statistics.median(recoveries))
        print(
            f"{kills} kills, {count:.0f} calls sent again; recovery: median "
            f"{statistics.median(recoveries):.2f} s, worst {max(recoveries):.2f} s"
        )
        family = descendants(stack.process.pid)
        assert stop_stack(stack) == 0
    assert not {pid for pid in family if Path(f"/proc/{pid}").exists()}
    assert not shared_memory(*prefixes)
