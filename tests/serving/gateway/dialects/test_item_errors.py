"""An item that fails leaves its kind of error to the request, in every dialect and in streams."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from inference.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    Overloaded,
    Quarantined,
    ServingError,
    TooLong,
    Unavailable,
)
from inference.tasks.generate import TASK as GENERATE
from inference.tasks.shared.items import error_of, item_error
from inference.tasks.shared.model_calls import GenerateCall, InferCall
from serving.gateway.dialects.huggingface.generation import GeneratingRequest, TokenEvents
from tests.inference.text_models import cross_encoder
from tests.serving.gateway.conftest import GREEDY, Gateway, MakeGateway, _with_tokenizer, loaded
from triptych.messages import Chunk, TokenLogprob
from triptych.tasks.generate import GenerateRequest

KINDS = (Unavailable, Overloaded, DeadlineExceeded, InternalError, Quarantined)
LONG = " ".join("abcabcabc")
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"model": "tiny-generate", "prompt": ["a b", LONG]},
    "/translate": {"q": ["a b", LONG], "source": "es", "target": "en"},
    "/rerank": {"query": "a", "texts": ["a b", LONG]},
}
"""Each with two items, of which one is `LONG`."""


@pytest.fixture
def gateway(make_gateway: MakeGateway) -> Gateway:
    return make_gateway(
        [
            loaded("generate", generation=GREEDY),
            loaded("translate", {"languages": [("es", "en")]}),
            _with_tokenizer(cross_encoder()),
        ]
    )


def of_long(error: ServingError) -> Callable[[GenerateCall | InferCall], ServingError | None]:
    """The failure of calls with many tokens."""

    def refuse(call: GenerateCall | InferCall) -> ServingError | None:
        sizes = [array.size for array in call.inputs.values()]
        return error if max(sizes) > 8 else None

    return refuse


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.wire)
@pytest.mark.parametrize("path", BODIES)
async def test_an_item_that_fails_keeps_its_status(
    gateway: Gateway, path: str, kind: type[ServingError]
) -> None:
    gateway.inference.refusing = of_long(kind("no", retry_after_s=3))
    response = await gateway.http.post(path, json=BODIES[path])
    expected = 400 if path == "/translate" and kind is Quarantined else kind.http_status
    assert response.status_code == expected, response.text
    assert ("retry-after" in response.headers) == (kind in (Unavailable, Overloaded))
    assert len(gateway.inference.calls) > 1  # one item has not failed
    assert f'type="{kind.wire}"' in gateway.exposed or f'error="{kind.wire}"' in gateway.exposed


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.wire)
async def test_an_item_that_fails_keeps_its_kind_in_a_stream(
    gateway: Gateway, kind: type[ServingError]
) -> None:
    gateway.inference.refusing = of_long(kind("no"))
    body = {**BODIES["/v1/completions"], "stream": True}
    response = await gateway.http.post("/v1/completions", json=body)
    assert response.status_code == 200
    found = [json.loads(line[6:]) for line in response.text.split("\n\n") if "error" in line]
    code = "rate_limit_exceeded" if kind is Overloaded else kind.wire
    assert [one["error"]["code"] for one in found] == [code]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.wire)
def test_an_event_of_text_generation_keeps_the_kind(kind: type[ServingError]) -> None:
    message = GenerateRequest(prompts=["a"])
    events = TokenEvents(GeneratingRequest(GENERATE, message, "/generate"))
    event = events.chunks([Chunk(index=0, error=item_error(kind("no")))])
    assert event == events.error(kind("no"))


@pytest.mark.parametrize("kind", [*KINDS, InvalidRequest, TooLong], ids=lambda kind: kind.wire)
def test_the_error_of_an_item_is_the_one_that_it_was_made_of(kind: type[ServingError]) -> None:
    found = error_of(item_error(kind("no", field="texts.1")))
    assert (type(found), found.message, found.field) == (kind, "no", "texts.1")


def test_an_error_of_text_generation_follows_the_events_of_all_tokens() -> None:
    message = GenerateRequest(prompts=["a"])
    events = TokenEvents(GeneratingRequest(GENERATE, message, "/generate"))
    token = TokenLogprob(token="a", logprob=-1.0, token_id=5)
    assert b'"text":"a"' in events.chunks([Chunk(index=0, text="a", logprobs=[token])])
    (error, _) = events.error(Unavailable("no")).split(b"\n\n")
    assert b'"error_type":"unavailable"' in error
