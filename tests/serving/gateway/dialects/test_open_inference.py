"""Open Inference Protocol: tensors of stateless models, bounded as every other request is."""

from __future__ import annotations

import asyncio
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
from tests.serving.gateway.conftest import Gateway, MakeGateway, all_models, text_models
from tests.serving.waiting import until
from triptych import __version__

VOCABULARY = 50
TEXT = "/v2/models/tiny-zero-shot-text"
INFER = f"{TEXT}/infer"
JSON = {"content-type": "application/json"}


def models() -> list[LoadedModel]:
    changes = {"source_vocabulary_size": VOCABULARY}
    return [
        replace(model, manifest=model.manifest.model_copy(update=changes))
        for model in (*all_models(), *text_models())
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
    answer = await gateway.http.post(
        INFER, json={"id": "a", "model_name": "tiny-zero-shot-text", **body()}
    )
    assert answer.status_code == 200
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
    answer = await gateway.http.post(INFER, json=sent)
    assert answer.status_code == 422
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
    refused = await gateway.http.post(name, json={"inputs": inputs})
    assert refused.status_code == 422
    assert "at most 200000" in refused.json()["error"]


async def test_images_are_pixels_within_bytes(gateway: Gateway) -> None:
    url = "/v2/models/tiny-zero-shot/infer"
    picture = np.full((1, 4, 4, 3), 255).tolist()
    answer = await gateway.http.post(url, json={"inputs": [tensor("pixels", picture, "UINT8")]})
    assert answer.status_code == 200
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
    keyed.inference.hold = asyncio.Event()
    first = asyncio.create_task(keyed.http.post(INFER, json=body(), headers=headers))
    await until(lambda: keyed.inference.running == 1)
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


async def test_dialect_can_be_left_out(make_gateway: MakeGateway) -> None:
    without = make_gateway(models(), dialects=("openai",))
    assert (await without.http.get(TEXT)).status_code == 404
    assert (await without.http.get("/v2/health/ready")).status_code == 200


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
