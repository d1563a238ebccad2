"""Requests against a stack: single, streamed and concurrent, and the outcome of each."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable

import httpx

from examples.texts.grammar import sentences
from tests.e2e.conftest import TIMEOUT_S

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
