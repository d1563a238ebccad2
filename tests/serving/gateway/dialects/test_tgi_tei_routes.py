"""The paths of Hugging Face's servers of one model, with its client and by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tests.serving.gateway.conftest import (
    GREEDY,
    Gateway,
    MakeGateway,
    all_models,
    loaded,
    text_models,
)

ENDING = GREEDY.model_copy(update={"eos_token_ids": (1,)})
"""With the end token of the tiny generator."""


@pytest.fixture
def gateway(make_gateway: MakeGateway) -> Gateway:
    return make_gateway([*all_models()[:3], loaded("generate", generation=ENDING), *text_models()])


async def answer(gateway: Gateway, path: str, body: dict[str, Any]) -> Any:
    response = await gateway.http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def test_generate_returns_the_object_that_the_list_holds(gateway: Gateway) -> None:
    body = {"inputs": "a b", "parameters": {"max_new_tokens": 3, "details": True}}
    (listed,) = await answer(gateway, "/hf/generate/tiny-generate", body)
    assert listed["generated_text"]
    assert await answer(gateway, "/generate", body) == listed


async def test_generate_stream_is_always_a_stream(gateway: Gateway) -> None:
    body = {"inputs": "a b", "parameters": {"max_new_tokens": 3}}
    named = await gateway.http.post("/hf/generate/tiny-generate", json={**body, "stream": True})
    for given in (body, {**body, "stream": False}):
        response = await gateway.http.post("/generate_stream", json=given)
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.text == named.text
        assert '"generated_text":"' in response.text


async def test_embed_and_similarity_are_those_of_the_named_model(gateway: Gateway) -> None:
    for path, inputs in (
        ("/embed", ["a b", "c"]),
        ("/embed", "a b"),
        ("/similarity", {"source_sentence": "a b", "sentences": ["c", "a b"]}),
    ):
        found = await answer(gateway, path, {"inputs": inputs})
        assert found == await answer(gateway, "/hf/embed/tiny-zero-shot", {"inputs": inputs})


async def test_rerank_is_that_of_the_task(gateway: Gateway) -> None:
    texts = ["a b", "c", "a"]
    own = await answer(gateway, "/v1/rerank", {"query": "a", "documents": texts})
    found = await answer(gateway, "/rerank", {"query": "a", "texts": texts, "return_text": True})
    assert [(one["index"], one["score"]) for one in found] == [
        (one["index"], one["score"]) for one in own["data"][0]["results"]
    ]
    assert [one["text"] for one in found] == [texts[one["index"]] for one in found]


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/rerank", {"query": "a", "texts": []}, "texts"),
        ("/rerank", {"query": "a", "texts": ["b"], "raw_scores": True}, "raw_scores"),
        ("/rerank", {"query": "a", "documents": ["b"]}, "texts"),
        ("/rerank", {"query": "a", "texts": ["b", "a " * 500]}, "texts.1"),
        ("/embed", {"inputs": ""}, "inputs"),
        ("/embed", {"inputs": "a", "truncate": True}, "truncate"),
        ("/generate", {"inputs": "a", "parameters": {"watermark": True}}, "watermark"),
    ],
)
async def test_refusals_name_the_field(
    gateway: Gateway, path: str, body: dict[str, Any], named: str
) -> None:
    response = await gateway.http.post(path, json=body)
    assert response.status_code == 422, response.text
    assert response.json()["error_type"] == "validation"
    assert named in response.json()["error"]


async def test_path_without_a_model_is_unknown(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(all_models()[:1])
    for path, body in (("/generate", {"inputs": "a"}), ("/rerank", {"query": "a", "texts": ["b"]})):
        response = await gateway.http.post(path, json=body)
        assert (response.status_code, response.json()["error_type"]) == (404, "unknown_model")
