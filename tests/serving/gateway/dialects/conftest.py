"""OpenAI's client of a module's gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import pytest

from tests.serving.gateway.conftest import Gateway


def connected(gateway: Gateway, key: str = "none") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url="http://gateway/v1", api_key=key, http_client=gateway.http, max_retries=0
    )


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with connected(gateway) as made:
        yield made
