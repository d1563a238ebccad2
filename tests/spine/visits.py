"""Visitors of a house: who asks, who streams, who comes in crowds, and how it ended for each."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable

import httpx

from export.examples.grammar import sentences
from tests.spine.conftest import PATIENCE_S

QUESTION = {"texts": ["el mundo no es suficiente"], "num_beams": 1}
ANSWER = "the world is not enough"


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
        told = b""
        async for chunk in response.aiter_bytes():
            told += chunk
            if response.status_code == 200:
                begun.set()
    if told.endswith(b"data: [DONE]\n\n"):
        return "answer"
    found = re.search(rb'"type":"(\w+)"', told)
    assert found, f"a stream broke off: {told[-200:]!r}"
    return found[1].decode()


async def crowd(client: httpx.AsyncClient, begun: asyncio.Event) -> list[asyncio.Task[str]]:
    """32 requests, half of them streams, the first of which has begun to be answered."""
    work = [asyncio.create_task(answered(client, paragraph(seed))) for seed in range(16)]
    work += [asyncio.create_task(streamed(client, paragraph(16 + n), begun)) for n in range(16)]
    async with asyncio.timeout(PATIENCE_S):
        await begun.wait()
    return work


async def until(claim: Callable[[], Awaitable[bool]]) -> float:
    """Seconds until a claim holds."""
    began = time.monotonic()
    async with asyncio.timeout(PATIENCE_S):
        while not await claim():
            await asyncio.sleep(0.02)
    return time.monotonic() - began


async def serves(client: httpx.AsyncClient) -> bool:
    response = await client.post("/v1/translate", json=QUESTION)
    if response.status_code != 200:
        assert response.status_code in {429, 503}, response.text
        assert response.headers["retry-after"]
        return False
    assert response.json()["data"][0]["text"] == ANSWER
    return True


async def is_ready(client: httpx.AsyncClient) -> bool:
    return (await client.get("/ready")).status_code == 200
