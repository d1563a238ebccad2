"""Model processes are killed under requests of every kind: each answer is the undisturbed one."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import os
import random
import re
import shutil
import signal
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from examples.history.task_requests import as_png
from examples.scenes.scores import heldout_pictures
from serving.triton.supervisor import MAX_DEAD_STUBS
from tests.e2e.conftest import ENCODERS, MODEL, TIMEOUT_S, Http, running, stop_stack
from tests.e2e.introspection import (
    descendants,
    resources,
    shared_memory,
    shm_prefix,
    stub_of,
    triton_of,
)
from tests.e2e.workload import is_ready, paragraph, until

pytestmark = pytest.mark.integration

GENERATOR, CAPTIONER = "example-gpt", "example-captioner"
MODELS = (MODEL, GENERATOR, CAPTIONER, ENCODERS[0])
SERVER = "tritonserver"
VICTIMS = (*MODELS, SERVER, *MODELS, MODEL)
"""In this order: each model's process and the server first."""


@pytest.fixture(scope="module")
def several(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a model of each kind."""
    folder = tmp_path_factory.mktemp("lost") / "model_repository"
    for part in (*MODELS, ENCODERS[1]):
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
        continued |= {"logit_bias": {"0": -100}}  # no end, so that they run when they are killed
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
            return response.json()["data"]
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


@pytest.mark.parametrize("kills", [5, pytest.param(50, marks=pytest.mark.full)])
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
        assert same(await load.answers(asyncio.Event()), undisturbed), "batches change the answers"
        assert await counted(client, "resent_calls") == 0
        prefixes = {shm_prefix(stack)}
        first = resources(stack)
        recoveries: dict[bool, list[float]] = {False: [], True: []}
        for number in range(kills):
            begun = asyncio.Event()
            work = asyncio.create_task(load.answers(begun))
            victim = VICTIMS[number % len(VICTIMS)]
            async with asyncio.timeout(TIMEOUT_S):
                await begun.wait()
                turns = chance.randrange(40) if number >= len(MODELS) else 0
                for _ in range(turns):  # so that all phases are met
                    await is_ready(client)
            is_server = victim == SERVER
            pid = triton_of(stack) if is_server else stub_of(stack.process.pid, victim)
            os.kill(pid, signal.SIGKILL)
            began = time.monotonic()
            async with asyncio.timeout(TIMEOUT_S):
                assert await load.answer_of(MODEL if is_server else victim)
                recoveries[is_server].append(time.monotonic() - began)
                answers = await work
            for request, answer, wanted in zip(load.requests, answers, undisturbed, strict=True):
                assert same(answer, wanted), (number, victim, request, answer, wanted)
            await until(lambda: is_ready(client))
            prefixes.add(shm_prefix(stack))
            processes, files, regions = resources(stack)
            assert processes <= first[0]
            assert files <= first[1] + 32, "each dead process may keep one, eight at most"
            assert regions <= first[2] + MAX_DEAD_STUBS
        count, kept = [await counted(client, one) for one in ("resent_calls", "kept_tokens")]
        assert count >= kills
        assert kept, "no stream had begun when its process was killed"
        assert not await counted(client, "quarantined_calls")
        print(f"{kills} kills, {count:.0f} calls sent again, {kept:.0f} tokens kept")
        for name, seconds in zip(("model process", SERVER), recoveries.values(), strict=True):
            median_s, worst_s = statistics.median(seconds), max(seconds)
            record_property(f"median_recovery_s of {name}", median_s)
            print(f"{name}: recovery median {median_s:.2f} s, worst {worst_s:.2f} s")
        family = descendants(stack.process.pid)
        assert stop_stack(stack) == 0
    assert not {pid for pid in family if Path(f"/proc/{pid}").exists()}
    assert not shared_memory(*prefixes)
