"""`/v1/embeddings`, with OpenAI's own client."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import openai
import pytest

from tests.inference.tiny_models import image_file, served, two_towers
from tests.serving.gateway.conftest import Gateway, MakeGateway

TEXTS = ["a", "a b"]


@pytest.fixture
def gateway(make_gateway: MakeGateway) -> Gateway:
    return make_gateway([served(two_towers())])


@pytest.fixture
def model(gateway: Gateway) -> str:
    (found,) = gateway.service.catalog.models
    return found.name


async def native(gateway: Gateway, **body: Any) -> list[list[float]]:
    response = await gateway.http.post("/v1/embed", json=body)
    return [item["embedding"] for item in response.json()["data"]]


async def test_embeddings_are_those_of_the_native_route(
    gateway: Gateway, client: openai.AsyncOpenAI, model: str
) -> None:
    wanted = await native(gateway, model=model, texts=TEXTS)
    for encoding in ({}, {"encoding_format": "float"}):  # by default the client asks for base64
        found = await client.embeddings.create(model=model, input=TEXTS, **encoding)
        assert [item.index for item in found.data] == [0, 1]
        np.testing.assert_allclose([item.embedding for item in found.data], wanted, atol=1e-7)
    assert (found.object, found.model) == ("list", model)
    assert found.usage.prompt_tokens == found.usage.total_tokens > 0


async def test_base64_holds_little_endian_float32(gateway: Gateway, model: str) -> None:
    body = {"model": model, "input": "a", "encoding_format": "base64"}
    response = await gateway.http.post("/v1/embeddings", json=body)
    (item,) = response.json()["data"]
    vector = np.frombuffer(base64.b64decode(item["embedding"]), "<f4")
    np.testing.assert_allclose([vector], await native(gateway, model=model, texts="a"), atol=1e-7)


async def test_dimensions_are_the_first_numbers_at_unit_length(
    gateway: Gateway, client: openai.AsyncOpenAI, model: str
) -> None:
    (whole,) = await native(gateway, model=model, texts="a")
    found = await client.embeddings.create(model=model, input="a", dimensions=2)
    wanted = np.array(whole[:2]) / np.linalg.norm(whole[:2])
    np.testing.assert_allclose(found.data[0].embedding, wanted, atol=1e-6)
    for dimensions in (len(whole), None):
        given = {} if dimensions is None else {"dimensions": dimensions}
        found = await client.embeddings.create(model=model, input="a", **given)
        np.testing.assert_allclose(found.data[0].embedding, whole, atol=1e-7)


async def test_images_are_a_modality(
    gateway: Gateway, client: openai.AsyncOpenAI, model: str
) -> None:
    image = base64.b64encode(image_file("red")).decode()
    found = await client.embeddings.create(
        model=model, input=image, extra_body={"modality": "image"}
    )
    wanted = await native(gateway, model=model, images=image)
    np.testing.assert_allclose([found.data[0].embedding], wanted, atol=1e-7)


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"input": []}, "input", "at least 1 item"),
        ({"input": [1, 2]}, "input", "token ids are not served"),
        ({"input": "a " * 400}, "input.0", "tokens"),
        ({"input": ["a", "a " * 400]}, "input.1", "tokens"),
        ({"dimensions": 0}, "dimensions", "greater than or equal to 1"),
        ({"dimensions": 4096}, "dimensions", "have 3"),
        ({"encoding_format": "int8"}, "encoding_format", "'float' or 'base64'"),
        ({"extra_body": {"modality": "sound"}}, "modality", "'text' or 'image'"),
    ],
)
async def test_invalid_fields_are_named(
    client: openai.AsyncOpenAI, model: str, fields: dict[str, Any], param: str, message: str
) -> None:
    request: dict[str, Any] = {"model": model, "input": "a"}
    with pytest.raises(openai.UnprocessableEntityError) as refused:
        await client.embeddings.create(**request | fields)
    assert refused.value.param == param
    assert message in str(refused.value)


async def test_what_is_no_image_is_refused(client: openai.AsyncOpenAI, model: str) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        await client.embeddings.create(model=model, input="abcd", extra_body={"modality": "image"})
    assert refused.value.status_code == 415
    assert refused.value.param == "input.0"
