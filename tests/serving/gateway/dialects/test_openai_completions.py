"""`/v1/completions` and `/v1/embeddings`, with OpenAI's own client."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import openai
import pytest

from inference.errors import Overloaded
from tests.inference.tiny_models import image_file, served, two_towers
from tests.serving.gateway.conftest import GREEDY, Gateway, MakeGateway, loaded
from tests.serving.gateway.dialects.conftest import connected

MODEL = "tiny-generate"


@pytest.fixture
def gateway(make_gateway: MakeGateway) -> Gateway:
    """Its fake generator repeats the prompt."""
    return make_gateway([loaded("generate", generation=GREEDY)])


async def test_completion_has_the_form_of_openai(client: openai.AsyncOpenAI) -> None:
    done = await client.completions.create(model=MODEL, prompt="a b")
    assert (done.object, done.model) == ("text_completion", MODEL)
    assert done.id.startswith("cmpl-")
    (choice,) = done.choices
    assert (choice.index, choice.text, choice.finish_reason) == (0, "a b", "stop")
    assert choice.logprobs is None
    assert done.usage.total_tokens == done.usage.prompt_tokens + done.usage.completion_tokens


async def test_outputs_of_several_prompts_follow_each_other(client: openai.AsyncOpenAI) -> None:
    done = await client.completions.create(model=MODEL, prompt=["a", "b", "a b"], n=2)
    assert [choice.index for choice in done.choices] == [0, 1, 2, 3, 4, 5]
    assert [choice.text for choice in done.choices] == ["a", "a", "b", "b", "a b", "a b"]


async def test_parameters_reach_the_task(gateway: Gateway, client: openai.AsyncOpenAI) -> None:
    await client.completions.create(
        model=MODEL,
        prompt="a",
        max_tokens=4,
        temperature=0.5,
        top_p=0.9,
        n=2,
        best_of=3,
        seed=3,
        stop=["x", "y"],
        logit_bias={"5": 1.5},
        frequency_penalty=0.5,
        user="u",
        extra_body={"top_k": 7},
    )
    options = gateway.inference.calls[-1].options
    assert (options.max_new_tokens, options.temperature, options.top_p) == (4, 0.5, 0.9)
    assert (options.seed, options.top_k, options.logit_bias) == (3, 7, {5: 1.5})
    assert (options.best_of, options.num_return_sequences) == (3, 2)


async def test_sixteen_tokens_are_the_default(gateway: Gateway, client: openai.AsyncOpenAI) -> None:
    for given in ({}, {"max_tokens": None}):
        await client.completions.create(model=MODEL, prompt="a", **given)
        assert gateway.inference.calls[-1].options.max_new_tokens == 16


async def test_log_probabilities_have_the_form_of_openai(client: openai.AsyncOpenAI) -> None:
    done = await client.completions.create(model=MODEL, prompt="a b", logprobs=2)
    logprobs = done.choices[0].logprobs
    assert logprobs.tokens == ["a", "b", "</s>"]
    assert logprobs.token_logprobs == [-0.25] * len(logprobs.tokens or ())
    assert logprobs.text_offset == [0, 2, 3]
    assert sorted((logprobs.top_logprobs or [{}])[0].values()) == [-1.5, -0.25]


async def test_without_alternatives_there_are_no_top_log_probabilities(
    client: openai.AsyncOpenAI,
) -> None:
    done = await client.completions.create(model=MODEL, prompt="a b", logprobs=0)
    assert done.choices[0].logprobs is not None
    assert done.choices[0].logprobs.top_logprobs is None
    assert done.choices[0].logprobs.tokens


@pytest.mark.parametrize("with_usage", [False, True])
async def test_stream_is_read_by_openais_client(
    client: openai.AsyncOpenAI, with_usage: bool
) -> None:
    stream = await client.completions.create(
        model=MODEL,
        prompt=["a b a", "b b"],
        stream=True,
        logprobs=1,
        stream_options={"include_usage": with_usage},
    )
    events = [event async for event in stream]
    choices = [event.choices[0] for event in events if event.choices]
    for index, text in enumerate(("a b a", "b b")):
        own = [choice for choice in choices if choice.index == index]
        assert "".join(choice.text for choice in own) == text
        assert [choice.finish_reason for choice in own][-1] == "stop"
        logprobs = [choice.logprobs for choice in own if choice.logprobs is not None]
        tokens = [token for one in logprobs for token in one.tokens or ()]
        offsets = [offset for one in logprobs for offset in one.text_offset or ()]
        assert tokens == [*text.split(), "</s>"]
        assert [text[offset : offset + 1] for offset in offsets] == [*text.split(), ""]
    assert len({event.id for event in events}) == 1
    assert bool(events[-1].usage) == with_usage


async def test_stream_that_fails_raises_in_openais_client(
    gateway: Gateway, client: openai.AsyncOpenAI
) -> None:
    gateway.inference.breaks[1] = Overloaded("full")
    stream = await client.completions.create(model=MODEL, prompt="a b", stream=True)
    with pytest.raises(openai.APIError, match="full"):
        _ = [event async for event in stream]


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"prompt": []}, "prompt", "at least 1 item"),
        ({"prompt": [1, 2]}, "prompt", "token ids are not served"),
        ({"prompt": [[1, 2]]}, "prompt", "token ids are not served"),
        ({"prompt": "a " * 40}, "prompt.0", "tokens"),
        ({"prompt": ["a", "a " * 40]}, "prompt.1", "tokens"),
        ({"suffix": "b"}, "suffix", "leave suffix out"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"logprobs": 21}, "logprobs", "less than or equal to 20"),
        ({"n": 2, "stream": True}, "n", "stream"),
        ({"tools": [{"type": "function"}]}, "tools", ""),
    ],
)
async def test_invalid_fields_are_named(
    client: openai.AsyncOpenAI, fields: dict[str, Any], param: str, message: str
) -> None:
    request: dict[str, Any] = {"model": MODEL, "prompt": "a", "extra_body": {}}
    extra = {name: fields[name] for name in ("tools",) if name in fields}
    given = {name: value for name, value in fields.items() if name not in extra}
    with pytest.raises(openai.UnprocessableEntityError) as refused:
        await client.completions.create(**request | given | {"extra_body": extra})
    assert refused.value.param == param
    assert message in str(refused.value)


async def test_unknown_model_is_not_found(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        await client.completions.create(model="absent", prompt="a")
    assert refused.value.code == "unknown_model"


async def test_retries_of_the_client_wait_as_long_as_they_are_told(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connected(gateway).with_options(max_retries=2)
    gateway.inference.failures[MODEL] = Overloaded("full", retry_after_s=1)
    waited: list[float] = []

    async def wait(seconds: float) -> None:
        waited.append(seconds)
        gateway.inference.failures.clear()

    monkeypatch.setattr("openai._base_client.anyio.sleep", wait)
    done = await client.completions.create(model=MODEL, prompt="a")
    assert done.choices[0].text == "a"
    assert waited == [1.0]


TEXTS = ["a", "a b"]


@pytest.fixture
def gateway_openai_embeddings(make_gateway: MakeGateway) -> Gateway:
    return make_gateway([served(two_towers())])


@pytest.fixture
async def embeddings_client(
    gateway_openai_embeddings: Gateway,
) -> AsyncIterator[openai.AsyncOpenAI]:
    async with connected(gateway_openai_embeddings) as made:
        yield made


@pytest.fixture
def model(gateway_openai_embeddings: Gateway) -> str:
    (found,) = gateway_openai_embeddings.service.catalog.models
    return found.name


async def native(gateway_openai_embeddings: Gateway, **body: Any) -> list[list[float]]:
    response = await gateway_openai_embeddings.http.post("/v1/embed", json=body)
    return [item["embedding"] for item in response.json()["data"]]


async def test_embeddings_are_those_of_the_native_route(
    gateway_openai_embeddings: Gateway, embeddings_client: openai.AsyncOpenAI, model: str
) -> None:
    wanted = await native(gateway_openai_embeddings, model=model, texts=TEXTS)
    for encoding in ({}, {"encoding_format": "float"}):  # by default the client asks for base64
        found = await embeddings_client.embeddings.create(model=model, input=TEXTS, **encoding)
        assert [item.index for item in found.data] == [0, 1]
        np.testing.assert_allclose([item.embedding for item in found.data], wanted, atol=1e-7)
    assert (found.object, found.model) == ("list", model)
    assert found.usage.prompt_tokens == found.usage.total_tokens > 0


async def test_base64_holds_little_endian_float32(
    gateway_openai_embeddings: Gateway, model: str
) -> None:
    body = {"model": model, "input": "a", "encoding_format": "base64"}
    response = await gateway_openai_embeddings.http.post("/v1/embeddings", json=body)
    (item,) = response.json()["data"]
    vector = np.frombuffer(base64.b64decode(item["embedding"]), "<f4")
    np.testing.assert_allclose(
        [vector], await native(gateway_openai_embeddings, model=model, texts="a"), atol=1e-7
    )


async def test_dimensions_are_the_first_numbers_at_unit_length(
    gateway_openai_embeddings: Gateway, embeddings_client: openai.AsyncOpenAI, model: str
) -> None:
    (whole,) = await native(gateway_openai_embeddings, model=model, texts="a")
    found = await embeddings_client.embeddings.create(model=model, input="a", dimensions=2)
    wanted = np.array(whole[:2]) / np.linalg.norm(whole[:2])
    np.testing.assert_allclose(found.data[0].embedding, wanted, atol=1e-6)
    for dimensions in (len(whole), None):
        given = {} if dimensions is None else {"dimensions": dimensions}
        found = await embeddings_client.embeddings.create(model=model, input="a", **given)
        np.testing.assert_allclose(found.data[0].embedding, whole, atol=1e-7)


async def test_images_are_a_modality(
    gateway_openai_embeddings: Gateway, embeddings_client: openai.AsyncOpenAI, model: str
) -> None:
    image = base64.b64encode(image_file("red")).decode()
    found = await embeddings_client.embeddings.create(
        model=model, input=image, extra_body={"modality": "image"}
    )
    wanted = await native(gateway_openai_embeddings, model=model, images=image)
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
async def test_openai_embeddings_invalid_fields_are_named(
    embeddings_client: openai.AsyncOpenAI,
    model: str,
    fields: dict[str, Any],
    param: str,
    message: str,
) -> None:
    request: dict[str, Any] = {"model": model, "input": "a"}
    with pytest.raises(openai.UnprocessableEntityError) as refused:
        await embeddings_client.embeddings.create(**request | fields)
    assert refused.value.param == param
    assert message in str(refused.value)


async def test_what_is_no_image_is_refused(
    embeddings_client: openai.AsyncOpenAI, model: str
) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        await embeddings_client.embeddings.create(
            model=model, input="abcd", extra_body={"modality": "image"}
        )
    assert refused.value.status_code == 415
    assert refused.value.param == "input.0"
