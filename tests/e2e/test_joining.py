"""Small requests of many clients share calls to a real Triton, and their answers do not change."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest

from inference.bundle.repository import Repository
from serving.gateway.observability.metrics import Metrics
from serving.gateway.requests.catalog import load_catalog
from serving.gateway.requests.health import Readiness
from serving.gateway.requests.service import Service
from serving.gateway.server.app import create_app
from serving.gateway.triton_client.endpoint import Address
from serving.gateway.triton_client.pool import TritonPool
from serving.settings.gateway_settings import GatewaySettings
from serving.triton.server import TritonServer
from tests.e2e.text_bundles import copy_models
from tests.serving.triton.tiny import brief_server, http, settings

pytestmark = pytest.mark.integration

EMBEDDER = "example-bert-embed"
FILLER = "example-bert"
REQUESTS = 96
TOLERANCE = 1e-5
WORDS = "Ana Pedro visited sold the old lamp in Rome yesterday and bought a big red hat".split()


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    folder = copy_models(repository, tmp_path_factory.mktemp("joining"), (EMBEDDER, FILLER))
    with brief_server(settings(folder)) as started:
        for name in (EMBEDDER, FILLER):
            started.load(name)
        yield started


@asynccontextmanager
async def gateway(server: TritonServer) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a new gateway, which has no cached embeddings."""
    catalog = load_catalog(Repository(server.settings.repository))
    metrics = Metrics()
    pool = TritonPool([Address(server.grpc_address)], metrics)
    service = Service(catalog, pool, GatewaySettings(), metrics)
    app = create_app(service, Readiness(service, lambda: pool.endpoints))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            yield client
    finally:
        await service.close()


def executed(server: TritonServer, model: str) -> tuple[int, int]:
    """Requests that Triton has answered, and executions of the model."""
    with http(server) as client:
        reply = client.get(f"/v2/models/{model}/stats").raise_for_status()
    (stats,) = reply.json()["model_stats"]
    return stats["inference_stats"]["success"]["count"], stats["execution_count"]


async def answers(client: httpx.AsyncClient, path: str, bodies: list[dict], at_once: int) -> list:
    limit = asyncio.Semaphore(at_once)

    async def answer(body: dict) -> list:
        async with limit:
            response = await client.post(path, json=body)
        assert response.status_code == 200, response.text
        return response.json()["data"]

    return await asyncio.gather(*map(answer, bodies))


async def test_embeddings_of_many_clients_are_those_of_one(server: TritonServer) -> None:
    random_words = random.Random(3)
    texts = [" ".join(random_words.choices(WORDS, k=1 + n % 24)) for n in range(REQUESTS)]
    bodies = [{"model": EMBEDDER, "texts": [text]} for text in texts]
    async with gateway(server) as client:
        alone = await answers(client, "/v1/embed", bodies, at_once=1)
    before = executed(server, EMBEDDER)
    async with gateway(server) as client:
        together = await answers(client, "/v1/embed", bodies, at_once=REQUESTS)
    calls, executions = np.subtract(executed(server, EMBEDDER), before)
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_allclose(one[0]["embedding"], other[0]["embedding"], atol=TOLERANCE)
    assert calls < REQUESTS / 2
    assert executions <= calls


async def test_texts_with_different_numbers_of_masks_share_calls(server: TritonServer) -> None:
    masks = [1 + n % 2 * 2 + n % 3 // 2 for n in range(REQUESTS)]  # 1 to 4
    texts = [
        f"{WORDS[n % 7]} visited " + "[MASK] " * count + "in Rome." for n, count in enumerate(masks)
    ]
    bodies = [{"model": FILLER, "texts": [text]} for text in texts]
    async with gateway(server) as client:
        alone = await answers(client, "/v1/fill-mask", bodies, at_once=1)
        before = executed(server, FILLER)
        together = await answers(client, "/v1/fill-mask", bodies, at_once=REQUESTS)
    calls, _ = np.subtract(executed(server, FILLER), before)
    for one, other, count in zip(alone, together, masks, strict=True):
        found, expected = other[0]["masks"], one[0]["masks"]
        assert [len(found), len(expected)] == [count, count]
        for tokens, same in zip(found, expected, strict=True):
            scores = [[token["score"] for token in each] for each in (tokens, same)]
            np.testing.assert_allclose(*scores, atol=TOLERANCE)
    assert calls < REQUESTS / 2
