"""The paths of Hugging Face's servers of one model, with its client and by hand."""

from __future__ import annotations

import json
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
        ("/embed", {"inputs": "a", "truncate": 3}, "truncate"),
        ("/embed", {"inputs": "a " * 500}, "inputs"),
        ("/predict", {"inputs": "a " * 500}, "inputs"),
        ("/predict", {"inputs": ["a", "b", "c"]}, "inputs"),
        ("/predict", {"inputs": [["a"], ["b", "c"]]}, "two requests"),
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


async def test_predict_is_that_of_the_task(gateway: Gateway) -> None:
    own = await answer(gateway, "/v1/classify", {"texts": ["a b", "c"], "top_k": 3})
    labels = [item["labels"] for item in own["data"]]
    assert await answer(gateway, "/predict", {"inputs": "a b"}) == labels[0]
    assert await answer(gateway, "/predict", {"inputs": ["a b"]}) == labels[0]
    assert await answer(gateway, "/predict", {"inputs": [["a b"], ["c"]]}) == labels
    own = await answer(gateway, "/v1/classify", {"pairs": [["a", "b c"]], "top_k": 3})
    (pair,) = [item["labels"] for item in own["data"]]
    assert await answer(gateway, "/predict", {"inputs": ["a", "b c"]}) == pair
    assert await answer(gateway, "/predict", {"inputs": [["a", "b c"]]}) == [pair]
    raw = await answer(gateway, "/predict", {"inputs": "a b", "raw_scores": True})
    assert max(one["score"] for one in raw) > 1


LONG = "picture " + "c d e f g h " * 7
CUT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "/embed": ({"inputs": LONG}, {"truncate": True}),
    "/hf/embed/tiny-zero-shot": ({"inputs": ["a", LONG]}, {"truncate": True}),
    "/similarity": (
        {"inputs": {"source_sentence": "a", "sentences": [LONG]}},
        {"parameters": {"truncate": True, "truncation_direction": "left"}},
    ),
    "/rerank": ({"query": "a", "texts": ["b", LONG]}, {"truncate": True}),
    "/predict": ({"inputs": ["a", LONG]}, {"truncate": True, "truncation_direction": "Left"}),
    "/hf/classify/tiny-classify": ({"inputs": LONG}, {"parameters": {"truncation": True}}),
    "/hf/fill-mask/tiny-fill-mask": (
        {"inputs": LONG},
        {"parameters": {"truncation": "longest_first"}},
    ),
    "/hf/tag/tiny-tag": ({"inputs": LONG}, {"parameters": {"truncation": "only_first"}}),
}
"""A body with a text that is too long, and what has it cut."""


@pytest.mark.parametrize("path", CUT)
async def test_a_long_text_is_cut_on_request_and_the_header_says_so(
    gateway: Gateway, path: str
) -> None:
    body, cutting = CUT[path]
    refused = await gateway.http.post(path, json=body)
    assert refused.status_code == 422, refused.text
    found = await gateway.http.post(path, json={**body, **cutting})
    assert found.status_code == 200, found.text
    assert 0 < int(found.headers["x-truncated-characters"]) < len(LONG)


@pytest.mark.parametrize("path", CUT)
async def test_nothing_is_cut_of_a_text_that_fits(gateway: Gateway, path: str) -> None:
    body, cutting = CUT[path]
    body = json.loads(json.dumps(body).replace(LONG, "picture c d e f g"))
    found = await gateway.http.post(path, json={**body, **cutting})
    assert found.status_code == 200, found.text
    assert "x-truncated-characters" not in found.headers
    plain = await gateway.http.post(path, json=body)
    assert found.content == plain.content


@pytest.mark.parametrize("field", ["truncate", "truncation", "truncate_prompt_tokens"])
async def test_apis_without_a_field_for_it_cut_nothing(gateway: Gateway, field: str) -> None:
    for path, body in (
        ("/v1/embeddings", {"model": "tiny-zero-shot", "input": "a"}),
        ("/v1/completions", {"model": "tiny-generate", "prompt": "a"}),
        ("/generate", {"inputs": "a"}),
    ):
        response = await gateway.http.post(path, json={**body, field: True})
        assert response.status_code in (400, 422), response.text
        assert field in response.text
