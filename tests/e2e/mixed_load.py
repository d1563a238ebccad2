"""Requests of every kind, whose answers do not change when what serves them is killed."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import re
import time

import httpx

from examples.history.task_requests import as_png
from examples.scenes.scores import heldout_pictures
from tests.e2e.conftest import ENCODERS, MODEL
from tests.e2e.workload import paragraph

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
