"""Each row of `cases`, over each way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from inference.errors import Overloaded, ServingError
from inference.generation import Finished
from inference.tasks import TASKS
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.model_calls import Call, GenerateCall
from tests.serving.gateway.conftest import MakeGateway
from tests.tasks.cases import CASES, Case, match
from tests.tasks.drivers import DRIVERS, Refused, chunks, connected, http, multipart
from tests.tasks.models import RED
from tests.tasks.refusals import GOOD, Refusal

WAYS = ["in process", "http", "grpc", "http client", "grpc client"]
FORMS = [case for case in CASES if "images" in case.fields and not case.outputs]


def name_of(row: Any) -> str:
    return f"{row.task} {row.given}"[:60].encode("ascii", "replace").decode()


def read(call: Call, model: LoadedModel) -> Mapping[str, Any]:
    """What rows say of a call."""
    ids = [name for name in ("source_ids", "prompt_ids", "token_ids") if name in call.inputs]
    flat = call.inputs[ids[0]].reshape(-1) if ids else []
    pieces = model.tokenizer.pieces(flat)
    told: dict[str, Any] = {
        **{name: array.tolist() for name, array in call.inputs.items() if name != "pixels"},
        "model": call.model,
        "version": call.version,
        "inputs": sorted(call.inputs),
        "types": {str(call.inputs[name].dtype) for name in ids},
        "pieces": " ".join(pieces),
        "text": " ".join(piece for piece, number in zip(pieces, flat, strict=True) if number > 2),
    }
    if "pixels" in call.inputs:
        told["pixels"] = call.inputs["pixels"].shape
    if isinstance(call, GenerateCall):
        return {**told, **call.options.model_dump(), "is_read_live": call.read is not None}
    return {
        **told,
        "rows": call.rows,
        "first": "".join(pieces[:1]),
        "returns": set(call.outputs.values()),
    }


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES, ids=name_of)
async def test_the_response_is_the_rows(make_gateway: MakeGateway, way: str, case: Case) -> None:
    gateway = make_gateway([case.served()], grpc_port=0, **case.settings)
    (model,) = gateway.service.catalog.models
    outputs = list(case.outputs)

    def generated(call: GenerateCall) -> Finished:
        output = outputs.pop(0)
        if isinstance(output, ServingError):
            raise output
        return output

    if outputs:
        gateway.inference._generated = generated
    response: Any = await DRIVERS[way](gateway, case.task, case.fields)
    assert outputs == []
    assert type(response) is TASKS[case.task].declaration.response
    assert response.model == model.name
    found = response.model_dump()
    if case.data is not None:
        match(found["data"], case.data)
    if case.usage is not None:
        match((response.usage.prompt_tokens, response.usage.completion_tokens), case.usage)
    if case.sent is not None:
        match([read(call, model) for call in gateway.inference.calls], case.sent)


@pytest.mark.parametrize("case", FORMS, ids=name_of)
async def test_a_form_has_the_response_of_json(make_gateway: MakeGateway, case: Case) -> None:
    """The same calls too, each time of a gateway that has no embeddings yet."""
    found = []
    for way in (http, multipart):
        gateway = make_gateway([case.served()])
        (model,) = gateway.service.catalog.models
        response = await way(gateway, case.task, case.fields)
        found.append((response, [read(call, model) for call in gateway.inference.calls]))
    assert found[0] == found[1]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("task", GOOD)
async def test_a_model_that_refuses_all_calls_fails_the_request(
    make_gateway: MakeGateway, way: str, task: str
) -> None:
    row = Refusal(task, {}, None)
    gateway = make_gateway([row.served()], grpc_port=0)
    gateway.inference.refusing = lambda call: Overloaded("busy", retry_after_s=1.5)
    with pytest.raises(Refused) as caught:
        await DRIVERS[way](gateway, task, row.fields)
    assert (caught.value.kind, caught.value.field) == ("overloaded", None)
    assert caught.value.status in (429, "RESOURCE_EXHAUSTED")
    assert caught.value.retry_after_s == (1.5 if way == "in process" else 2)
    if task == "segment":  # what follows the labels is not run
        assert [call.model for call in gateway.inference.calls] == ["tiny-segment-text"]


STREAMS = {
    "generate": ({"prompts": ["one two three"]}, ["one two three"]),
    "translate": (
        {"texts": ["uno dos. tres\n\ncuatro", "cinco"]},
        ["uno dos. tres\n\ncuatro", "cinco"],
    ),
    "caption": ({"images": [RED], "prompt": "a"}, ["a picture"]),
}


@pytest.mark.parametrize("way", WAYS[1:])
@pytest.mark.parametrize("task", STREAMS)
async def test_chunks_together_are_the_response(
    make_gateway: MakeGateway, way: str, task: str
) -> None:
    fields, wanted = STREAMS[task]
    told = await chunks(make_gateway(grpc_port=0), way, task, fields)
    for index, text in enumerate(wanted):
        own = [chunk for chunk in told if chunk.index == index]
        assert "".join(chunk.text for chunk in own) == text
        assert [chunk.finish_reason for chunk in own] == [None] * (len(own) - 1) + ["stop"]
    assert {chunk.index for chunk in told} == set(range(len(wanted)))
    assert [chunk.usage is not None for chunk in told] == [False] * (len(told) - 1) + [True]


@pytest.mark.parametrize("way", ["http client", "grpc client"])
async def test_clients_read_the_models_and_readiness(make_gateway: MakeGateway, way: str) -> None:
    async with connected(make_gateway(grpc_port=0), way) as client:
        listed = (await client.models()).data
        assert [model.id for model in listed] == [
            *("tiny-translate", "tiny-caption", "tiny-zero-shot", "tiny-generate")
        ]
        assert listed[0].languages == [["es", "en"]]
        assert await client.ready()
