"""APIs of other servers: the Open Inference Protocol, and the paths of TGI and TEI."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import uvicorn
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException

from inference.errors import Unavailable
from inference.tasks.shared.loaded_model import LoadedModel
from tests.serving.gateway.conftest import (
    GREEDY,
    Gateway,
    MakeGateway,
    all_models,
    loaded,
    text_models,
)
from triptych import __version__

VOCABULARY = 50
TEXT = "/v2/models/tiny-zero-shot-text"
INFER = f"{TEXT}/infer"
JSON = {"content-type": "application/json"}
ENDING = GREEDY.model_copy(update={"eos_token_ids": (1,)})
"""With the end token of the tiny generator."""


def models() -> list[LoadedModel]:
    changes = {"source_vocabulary_size": VOCABULARY}
    return [
        replace(model, manifest=model.manifest.model_copy(update=changes))
        for model in (*all_models()[:3], loaded("generate", generation=ENDING), *text_models())
    ]


@pytest.fixture
def gateway(make_gateway: MakeGateway) -> Gateway:
    return make_gateway(models())


def tensor(name: str, data: list[Any], datatype: str = "INT64", **fields: Any) -> dict[str, Any]:
    shape = list(np.shape(data))
    return {"name": name, "shape": shape, "datatype": datatype, "data": data, **fields}


def body(tokens: list[Any] | None = None, lengths: list[Any] | None = None) -> dict[str, Any]:
    tokens = [[3, 4], [5, 0]] if tokens is None else tokens
    lengths = [2, 1] if lengths is None else lengths
    return {"inputs": [tensor("token_ids", tokens), tensor("lengths", lengths, "INT32")]}


async def test_tensors_reach_the_graph_and_return(gateway: Gateway) -> None:
    answer = await gateway.post(
        INFER, json={"id": "a", "model_name": "tiny-zero-shot-text", **body()}
    )
    [call] = gateway.inference.calls
    np.testing.assert_array_equal(call.inputs["token_ids"], [[3, 4], [5, 0]])
    np.testing.assert_array_equal(call.inputs["lengths"], np.array([2, 1], np.int32))
    assert call.inputs["lengths"].dtype == np.int32
    found = answer.json()
    assert (found["model_name"], found["model_version"], found["id"]) == (
        *("tiny-zero-shot-text", "3", "a"),
    )
    [output] = found["outputs"]
    assert (output["name"], output["shape"], output["datatype"]) == ("embedding", [2, 3], "FP32")
    expected = np.array([[7, 1, -7], [5, 1, -5]], float)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(np.reshape(output["data"], (2, 3)), expected, atol=1e-6)


async def test_flat_and_nested_tensors_are_the_same(gateway: Gateway) -> None:
    flat = body()
    flat["inputs"][0]["data"] = [3, 4, 5, 0]
    answers = [await gateway.http.post(INFER, json=each) for each in (body(), flat)]
    assert answers[0].json() == answers[1].json()


async def test_metadata_is_that_of_the_graphs(gateway: Gateway) -> None:
    server = await gateway.http.get("/v2")
    assert server.json() == {"name": "triptych", "version": __version__, "extensions": []}
    found = (await gateway.http.get(TEXT)).json()
    assert found["versions"] == ["3"]
    assert found["inputs"] == [
        {"name": "token_ids", "datatype": "INT64", "shape": [-1, -1]},
        {"name": "lengths", "datatype": "INT32", "shape": [-1]},
    ]
    assert found["outputs"] == [{"name": "embedding", "datatype": "FP32", "shape": [-1, 3]}]


async def test_generators_and_unknown_models_are_404_with_the_models_that_there_are(
    gateway: Gateway,
) -> None:
    for name in ("tiny-translate", "nothing"):
        for answer in (
            await gateway.http.get(f"/v2/models/{name}"),
            await gateway.http.get(f"/v2/models/{name}/ready"),
            await gateway.http.post(f"/v2/models/{name}/infer", json=body()),
        ):
            assert answer.status_code == 404
            assert "tiny-zero-shot, tiny-zero-shot-text" in answer.json()["error"]
            assert "tiny-translate" not in answer.json()["error"]


async def test_ready_is_tritons_own(gateway: Gateway) -> None:
    ready = await gateway.http.get(f"{TEXT}/ready")
    assert ready.json() == {"name": "tiny-zero-shot-text", "ready": True}
    gateway.inference.unloaded.add("tiny-zero-shot-text")
    assert (await gateway.http.get(f"{TEXT}/ready")).status_code == 503


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (body(tokens=[[3, VOCABULARY], [5, 0]]), "tokens must be from 0 to 49"),
        (body(tokens=[[3, -1], [5, 0]]), "tokens must be from 0 to 49"),
        (body(lengths=[3, 1]), "lengths must be from 1 to 2"),
        (body(lengths=[0, 1]), "lengths must be from 1 to 2"),
        (body(lengths=[1, 1, 1]), "a dimension of lengths is not the 2 of another input"),
        (body(tokens=[[3] * 13] * 2), "a dimension of token_ids is larger than 12"),
        (body(tokens=[[3]] * 33, lengths=[1] * 33), "a dimension of token_ids is larger than 32"),
        (body(tokens=[3, 4]), "token_ids must have a shape like [-1, -1]"),
        (body(tokens=[[3, 4.0], [5, 0]]), "token_ids must be integers"),
        (body(tokens=[[3, True], [5, 0]]), "token_ids must be integers"),
        (body(tokens=[["3", 4], [5, 0]]), "token_ids must be integers"),
        (body(tokens=[[3, 10**30], [5, 0]]), "token_ids has an integer of more than 64 bits"),
        (body(lengths=[2**33, 1]), "lengths must be from"),
        ({"inputs": [tensor("token_ids", [[3]])]}, "takes the inputs token_ids, lengths"),
        (
            {"inputs": [*body()["inputs"], tensor("token_ids", [[3]])]},
            "takes the inputs token_ids, lengths, each once",
        ),
        ({**body(), "outputs": [{"name": "hidden"}]}, "has the outputs embedding, each once"),
        (
            {**body(), "outputs": [{"name": "embedding"}] * 2},
            "has the outputs embedding, each once",
        ),
        ({**body(), "parameters": {"sequence_id": 1}}, "sequence_id"),
        ({**body(), "model_name": "tiny-classify"}, "model_name is not the model of the path"),
        (
            {"inputs": [body()["inputs"][0] | {"datatype": "FP32"}, body()["inputs"][1]]},
            "token_ids is INT64",
        ),
        (
            {"inputs": [body()["inputs"][0] | {"data": [[3, 4], [5]]}, body()["inputs"][1]]},
            "token_ids is nested unevenly",
        ),
        (
            {"inputs": [body()["inputs"][0] | {"data": [3, 4, 5]}, body()["inputs"][1]]},
            "token_ids has not the values of its shape",
        ),
        (
            {"inputs": [body()["inputs"][0] | {"shape": [2, 2**70]}, body()["inputs"][1]]},
            "larger than 12",
        ),
    ],
)
async def test_what_the_graph_may_not_be_given_is_refused_before_it_runs(
    gateway: Gateway, sent: dict[str, Any], message: str
) -> None:
    answer = await gateway.post(INFER, json=sent, status=422)
    assert message in answer.json()["error"]
    assert gateway.inference.calls == []


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("tiny-fill-mask", {"positions": [[2]]}, "positions must be from 0 to 1"),
        ("tiny-fill-mask", {"choices": [[VOCABULARY]]}, "choices must be from 0 to 49"),
        ("tiny-fill-mask", {"choices": [[3] * 1001]}, "a dimension of choices is larger than 1000"),
        ("tiny-classify", {"segments": [[0, 2]]}, "segments must be from 0 to 1"),
    ],
)
async def test_every_index_is_bounded(
    gateway: Gateway, name: str, changes: dict[str, Any], message: str
) -> None:
    described = (await gateway.http.get(f"/v2/models/{name}")).json()["inputs"]
    sound = {
        "token_ids": [[3, 4]], "lengths": [2], "positions": [[0]], "choices": [[3]],
        "segments": [[0, 1]],
    }  # fmt: skip

    async def sent(values: dict[str, Any]) -> Any:
        inputs = [tensor(one["name"], values[one["name"]], one["datatype"]) for one in described]
        return await gateway.http.post(f"/v2/models/{name}/infer", json={"inputs": inputs})

    assert (await sent(sound)).status_code == 200
    refused = await sent({**sound, **changes})
    assert (refused.status_code, message in refused.json()["error"]) == (422, True)


async def test_outputs_have_a_largest_size(gateway: Gateway) -> None:
    name = "/v2/models/tiny-fill-mask/infer"
    rows, places, choices = 32, 12, 1000
    inputs = [
        tensor("token_ids", [[3] * places] * rows),
        tensor("lengths", [places] * rows, "INT32"),
        tensor("positions", [[0] * places] * rows),
        tensor("choices", [[3] * choices] * rows),
    ]
    refused = await gateway.post(name, json={"inputs": inputs}, status=422)
    assert "at most 200000" in refused.json()["error"]


async def test_images_are_pixels_within_bytes(gateway: Gateway) -> None:
    url = "/v2/models/tiny-zero-shot/infer"
    picture = np.full((1, 4, 4, 3), 255).tolist()
    await gateway.post(url, json={"inputs": [tensor("pixels", picture, "UINT8")]})
    picture[0][0][0][0] = 256
    refused = await gateway.http.post(url, json={"inputs": [tensor("pixels", picture, "UINT8")]})
    assert (refused.status_code, refused.json()["error"]) == (422, "pixels must be from 0 to 255")


async def test_requests_are_admitted_keyed_and_timed_as_others(make_gateway: MakeGateway) -> None:
    keyed = make_gateway(models(), api_key="secret", max_concurrent_tokens=4)
    for method, path in (("GET", "/v2"), ("GET", TEXT), ("GET", f"{TEXT}/ready"), ("POST", INFER)):
        refused = await keyed.http.request(method, path, json=body())
        assert (refused.status_code, set(refused.json())) == (401, {"error"})
    assert (await keyed.http.get("/v2/health/live")).status_code == 200
    headers = {"authorization": "Bearer secret"}
    first = await keyed.held(INFER, json=body(), headers=headers)
    full = await keyed.http.post(INFER, json=body(), headers=headers)
    assert (full.status_code, "retry-after" in full.headers) == (429, True)
    keyed.inference.hold.set()
    assert (await first).status_code == 200
    keyed.inference.hold.clear()
    late = await keyed.http.post(
        INFER, json=body(), headers={**headers, "x-request-timeout": "0.05"}
    )
    assert (late.status_code, set(late.json())) == (504, {"error"})
    exposed = (await keyed.http.get("/metrics", headers=headers)).text
    assert 'route="/v2/models/{model}/infer"' in exposed


async def test_failure_of_the_model_is_that_of_the_request(gateway: Gateway) -> None:
    gateway.inference.failures["tiny-zero-shot-text"] = Unavailable("gone", retry_after_s=2)
    answer = await gateway.http.post(INFER, json=body())
    assert (answer.status_code, answer.json()) == (503, {"error": "gone"})
    assert answer.headers["retry-after"] == "2"


@asynccontextmanager
async def listening(gateway: Gateway) -> AsyncIterator[str]:
    server = uvicorn.Server(uvicorn.Config(gateway.app, port=0, log_level="error", lifespan="off"))
    running = asyncio.ensure_future(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    host, port = server.servers[0].sockets[0].getsockname()
    try:
        yield f"{host}:{port}"
    finally:
        server.should_exit = True
        await running


async def test_tritons_own_client_works_with_a_content_type(gateway: Gateway) -> None:
    """It sends none by itself, as a form of another site may (docs/security.md)."""

    def work(address: str) -> tuple[Any, ...]:
        with InferenceServerClient(address) as client:
            inputs = [InferInput("token_ids", [2, 2], "INT64"), InferInput("lengths", [2], "INT32")]
            tokens = np.array([[3, 4], [5, 0]])
            inputs[0].set_data_from_numpy(tokens, binary_data=False)
            inputs[1].set_data_from_numpy(np.array([2, 1], np.int32), binary_data=False)
            name = "tiny-zero-shot-text"
            found = client.infer(name, inputs, request_id="b", headers=JSON)
            outputs = [InferRequestedOutput("embedding", binary_data=False)]
            named = client.infer(name, inputs, outputs=outputs, headers=JSON)
            inputs[0].set_data_from_numpy(tokens)
            with pytest.raises(InferenceServerException, match="binary_data=False"):
                client.infer(name, inputs)
            return (
                client.is_server_live(),
                client.is_model_ready(name),
                client.is_model_ready("nothing"),
                client.get_model_metadata(name)["name"],
                found.as_numpy("embedding").shape,
                np.array_equal(found.as_numpy("embedding"), named.as_numpy("embedding")),
            )

    async with listening(gateway) as address:
        found = await asyncio.to_thread(work, address)
    assert found == (True, True, False, "tiny-zero-shot-text", (2, 3), True)


async def answer(gateway: Gateway, path: str, body: dict[str, Any]) -> Any:
    response = await gateway.post(path, json=body)
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
    response = await gateway.post(path, json=body, status=422)
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
    await gateway.post(path, json=body, status=422)
    found = await gateway.post(path, json={**body, **cutting})
    assert 0 < int(found.headers["x-truncated-characters"]) < len(LONG)


@pytest.mark.parametrize("path", CUT)
async def test_nothing_is_cut_of_a_text_that_fits(gateway: Gateway, path: str) -> None:
    body, cutting = CUT[path]
    body = json.loads(json.dumps(body).replace(LONG, "picture c d e f g"))
    found = await gateway.post(path, json={**body, **cutting})
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
