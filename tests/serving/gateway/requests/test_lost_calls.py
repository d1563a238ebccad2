"""Requests whose model's process ends: streams go on at the next token, others are answered."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from inference.errors import Unavailable
from inference.sequences import Finished, TokenChunk
from inference.tasks.shared.model_calls import GenerateCall, InferCall, Outputs
from serving.gateway.triton_client import pool
from tests.serving.gateway.conftest import FakeInference, Gateway, MakeGateway

PROMPT = {"prompts": "one two three four five six", "stream": True}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "POLL_S", 0.001)


def lost() -> Unavailable:
    error = Unavailable("the model was restarted", retry_after_s=1)
    error.is_loss = True
    return error


class Losing(FakeInference):
    """Loses a stream after two tokens, `losses` times; goes on behind the tokens of a call."""

    losses = 2
    sent = 0

    async def stream(
        self, call: GenerateCall, timeout_s: float
    ) -> AsyncGenerator[TokenChunk | Finished, None]:
        behind = len(call.options.generated_ids or ())
        async for item in super().stream(call, timeout_s):
            if isinstance(item, Finished):
                yield item
                return
            if behind:
                behind -= 1
                continue
            yield item
            self.sent = self.sent % 2 + 1
            if self.sent == 2 and self.losses:
                self.losses -= 1
                raise lost()

    async def generate(self, call: GenerateCall, timeout_s: float) -> Finished:
        whole = await super().generate(call, timeout_s)
        return self._or_lost(whole)

    async def infer(self, call: InferCall, timeout_s: float) -> Outputs:
        outputs = await super().infer(call, timeout_s)
        return self._or_lost(outputs) if call.rows > 1 else outputs

    def _or_lost(self, result: Any) -> Any:
        if self.losses:
            self.losses -= 1
            raise lost()
        return result


@pytest.fixture
def gateway(make_gateway: MakeGateway, monkeypatch: pytest.MonkeyPatch) -> Gateway:
    monkeypatch.setattr("tests.serving.gateway.conftest.FakeInference", Losing)
    return make_gateway(recovery_timeout=5)


def joined(body: str) -> tuple[str, list[object], dict[str, Any]]:
    """The text of a stream, its log-probabilities, and the rest of its last chunk."""
    assert body.endswith("data: [DONE]\n\n")
    chunks = [json.loads(line) for line in re.findall(r"^data: (\{.*\})$", body, re.M)]
    text = "".join(one.pop("text", "") for one in chunks)
    records = [record for one in chunks for record in one.pop("logprobs", [])]
    return text, records, chunks[-1]


@pytest.mark.parametrize("fields", [{}, {"temperature": 0.7}, {"logprobs": 2}])
async def test_client_of_a_stream_notices_nothing(
    gateway: Gateway, fields: dict[str, object]
) -> None:
    assert isinstance(gateway.inference, Losing)
    gateway.inference.losses = 0
    wanted = await gateway.http.post("/v1/generate", json={**PROMPT, **fields})
    gateway.inference.calls.clear()
    gateway.inference.losses, gateway.inference.sent = 1, 0
    found = await gateway.http.post("/v1/generate", json={**PROMPT, **fields})
    assert joined(found.text) == joined(wanted.text)
    first, second = gateway.inference.calls
    assert isinstance(first, GenerateCall)
    assert isinstance(second, GenerateCall)
    whole = tuple(first.inputs["prompt_ids"].tolist())  # the fake repeats its prompt
    assert first.options.generated_ids is None
    assert second.options.generated_ids == whole[:2]
    assert first.options.seed is not None, "the sample must be the same one"
    assert second.options == first.options.model_copy(update={"generated_ids": whole[:2]})


@pytest.mark.parametrize("fields", [{"n": 2, "num_beams": 2}, {"stop": ["zz"]}, {}])
async def test_whole_responses_begin_anew(gateway: Gateway, fields: dict[str, object]) -> None:
    assert isinstance(gateway.inference, Losing)
    body = {"prompts": "one two three", **fields}
    gateway.inference.losses = 0
    wanted = await gateway.http.post("/v1/generate", json=body)
    gateway.inference.losses, gateway.inference.sent = 1, 0
    found = await gateway.http.post("/v1/generate", json=body)
    assert found.status_code == 200
    assert found.json()["data"] == wanted.json()["data"]


async def test_joined_calls_are_repeated_one_by_one(gateway: Gateway) -> None:
    assert isinstance(gateway.inference, Losing)
    bodies = [{"texts": f"text {number}"} for number in range(12)]
    gateway.inference.losses = 1
    found = await asyncio.gather(*(gateway.http.post("/v1/embed", json=body) for body in bodies))
    assert [one.status_code for one in found] == [200] * 12
    rows = [one.rows for one in gateway.inference.calls if isinstance(one, InferCall)]
    assert max(rows) > 1
    assert rows.count(1) >= max(rows)
    vectors = [one.json()["data"][0]["embedding"] for one in found]
    alone = [await gateway.http.post("/v1/embed", json=body) for body in bodies]  # from the cache
    assert vectors == [one.json()["data"][0]["embedding"] for one in alone]


async def test_stream_that_ends_its_process_again_and_again_is_refused_by_name(
    gateway: Gateway,
) -> None:
    found = await gateway.http.post("/v1/generate", json=PROMPT)
    assert '"type":"quarantined"' in found.text
    again = await gateway.http.post("/v1/generate", json=PROMPT)
    assert again.status_code == 422
    assert again.json()["error"]["type"] == "quarantined"
    other = await gateway.http.post("/v1/generate", json={**PROMPT, "prompts": "seven"})
    assert other.status_code == 200
