"""`/v1/chat/completions`, `/v1/completions` and `/v1/embeddings`, with OpenAI's own client."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from operator import attrgetter
from typing import Any

import numpy as np
import openai
import pytest
from openai import AsyncOpenAI

from inference.bundle.manifest import Limits
from inference.errors import Overloaded
from inference.tasks.shared.loaded_model import LoadedModel
from tests.inference.tasks.test_generate import seeing
from tests.inference.tiny_models import IMAGE, image_file, served, two_towers
from tests.serving.gateway.conftest import GREEDY, Gateway, MakeGateway, loaded
from tests.tasks.models import CHAT as SECTION


def connected(gateway: Gateway, key: str = "none") -> AsyncOpenAI:
    return AsyncOpenAI(
        base_url="http://gateway/v1", api_key=key, http_client=gateway.http, max_retries=0
    )


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[AsyncOpenAI]:
    async with connected(gateway) as made:
        yield made


RED = f"data:image/png;base64,{base64.b64encode(image_file('red')).decode()}"
COMPLETER, EMBEDDER = "tiny-generate", "tiny-zero-shot"
HELLO = [{"role": "user", "content": "a b"}]
CHAT: dict[str, Any] = {"model": "tiny-chat", "messages": HELLO}
PROMPT = "<s> user : a b assistant :"
"""What the fake repeats as its answer; special tokens are left out of texts."""
ANSWER = "user : a b assistant :"


def models() -> list[LoadedModel]:
    chat = loaded("chat", SECTION, generation=GREEDY)
    return [chat, loaded("generate", generation=GREEDY), served(two_towers())]


@pytest.fixture
def gateway(make_gateway: MakeGateway) -> Gateway:
    return make_gateway(models())


async def test_answer_has_the_form_of_openai(client: AsyncOpenAI) -> None:
    done = await client.chat.completions.create(**CHAT)
    assert done.object == "chat.completion"
    assert done.model == "tiny-chat"
    assert done.id.startswith("chatcmpl-")
    (choice,) = done.choices
    assert (choice.message.role, choice.message.content) == ("assistant", ANSWER)
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "stop", None)
    assert done.usage.total_tokens == done.usage.prompt_tokens + done.usage.completion_tokens
    assert done.usage.prompt_tokens == 7


async def test_image_urls_stand_in_the_conversation(make_gateway: MakeGateway) -> None:
    gateway = make_gateway([seeing()])
    image = {"type": "image_url", "image_url": {"url": RED}}
    parts = [{"type": "text", "text": "a"}, image, {"type": "text", "text": "b"}, image]
    async with connected(gateway) as client:
        done = await client.chat.completions.create(
            model="tiny-chat", messages=[{"role": "user", "content": parts}]
        )
    (call,) = gateway.inference.calls
    assert call.inputs["pixels"].shape == (2, 4, 4, 3)
    tokens = call.inputs["prompt_ids"].tolist()
    assert [tokens.index(3), tokens.count(3), tokens[3:6], tokens[7:10]] == [3, 6, [3] * 3, [3] * 3]
    assert done.choices[0].message.content


async def test_several_answers_are_choices(client: AsyncOpenAI) -> None:
    done = await client.chat.completions.create(**CHAT, n=3)
    assert [choice.index for choice in done.choices] == [0, 1, 2]


async def test_log_probabilities_have_the_form_of_openai(client: AsyncOpenAI) -> None:
    done = await client.chat.completions.create(**CHAT, logprobs=True, top_logprobs=2)
    logprobs = done.choices[0].logprobs
    first = logprobs.content[1]
    assert (first.token, first.logprob, first.bytes) == ("user", -0.25, list(b"user"))
    assert [top.logprob for top in first.top_logprobs] == [-0.25, -1.5]


async def test_parameters_reach_the_task(gateway: Gateway, client: AsyncOpenAI) -> None:
    await client.chat.completions.create(
        model="tiny-chat",
        messages=[{"role": "user", "content": [{"type": "text", "text": "a"}] * 2}],
        max_completion_tokens=4,
        temperature=0.5,
        top_p=0.9,
        seed=3,
        stop="x",
        logit_bias={"5": 1.5},
        presence_penalty=0.5,
        extra_body={"top_k": 7, "repetition_penalty": 1.2},
    )
    (call,) = gateway.inference.calls
    options = call.options
    assert (options.max_new_tokens, options.temperature, options.top_p) == (4, 0.5, 0.9)
    assert (options.seed, options.top_k, options.repetition_penalty) == (3, 7, 1.2)
    assert (options.logit_bias, options.presence_penalty) == ({5: 1.5}, 0.5)
    assert call.inputs["prompt_ids"].size == 7
    await client.chat.completions.create(**CHAT, max_tokens=5)
    assert gateway.inference.calls[-1].options.max_new_tokens == 5


@pytest.mark.parametrize("with_usage", [False, True])
async def test_stream_is_read_by_openais_client(client: AsyncOpenAI, with_usage: bool) -> None:
    options = {"include_usage": with_usage}
    stream = await client.chat.completions.create(**CHAT, stream=True, stream_options=options)
    events = [event async for event in stream]
    choices = [event.choices[0] for event in events if event.choices]
    assert "".join(choice.delta.content or "" for choice in choices) == ANSWER
    assert [choice.delta.role for choice in choices] == [
        "assistant", *[None] * (len(choices) - 1)
    ]  # fmt: skip
    assert [choice.finish_reason for choice in choices[:-1]] == [None] * (len(choices) - 1)
    assert choices[-1].finish_reason == "stop"
    assert len({event.id for event in events}) == 1
    assert events[0].model == "tiny-chat"
    assert bool(events[-1].usage) == with_usage
    assert (events[-1].choices == []) == with_usage


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("chat.completions", CHAT),
        ("completions", {"model": COMPLETER, "prompt": "a b"}),
    ],
)
async def test_stream_that_fails_and_unknown_model_raise_in_openais_client(
    gateway: Gateway, client: AsyncOpenAI, kind: str, body: dict[str, Any]
) -> None:
    create = attrgetter(kind)(client).create
    gateway.inference.breaks[2] = Overloaded("full")
    stream = await create(**body, stream=True)
    with pytest.raises(openai.APIError, match="full"):
        _ = [event async for event in stream]
    with pytest.raises(openai.NotFoundError) as refused:
        await create(**body | {"model": "absent"})
    assert refused.value.code == "unknown_model"


async def test_model_without_a_template_is_not_found(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        await client.chat.completions.create(model="tiny-generate", messages=HELLO)
    assert refused.value.code == "model_not_chat"
    assert refused.value.param == "model"


async def test_failures_have_the_types_that_openais_client_knows(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(models(), api_key="sesame")
    with pytest.raises(openai.AuthenticationError) as refused:
        await connected(gateway).chat.completions.create(**CHAT)
    assert refused.value.code == "invalid_api_key"
    client = connected(gateway, "sesame")
    await client.chat.completions.create(**CHAT)
    gateway.inference.failures["tiny-chat"] = Overloaded("full", retry_after_s=2)
    with pytest.raises(openai.RateLimitError) as full:
        await client.chat.completions.create(**CHAT)
    assert full.value.response.headers["retry-after"] == "2"
    gateway.inference.failures["tiny-chat"] = ValueError("secret")
    with pytest.raises(openai.InternalServerError) as bug:
        await client.chat.completions.create(**CHAT)
    assert "secret" not in str(bug.value)


async def test_models_are_listed_for_openais_client(client: AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == [
        "tiny-chat",
        "tiny-generate",
        "tiny-zero-shot",
    ]


@pytest.mark.parametrize(
    ("content", "param", "message"),
    [
        (None, "messages.0.content", "a text, or a list of parts of the types text and image_url"),
        (5, "messages.0.content", "give a text, or a list of parts"),
        ([], "messages.0.content", "at least 1 item"),
        ([{"type": "input_audio"}], "messages.0.content.0", "'text', 'image_url'"),
        ([{"type": "video_url"}], "messages.0.content", "videos are not read: send their frames"),
        ([{"type": "image_url", "text": "a"}], "messages.0.content.0.image_url.image_url", "equi"),
        (
            [{"type": "image_url", "image_url": {"url": 5}}],
            "messages.0.content.0.image_url.image_url.url",
            "string",
        ),
        ([{"type": "image_url", "image_url": {"url": "data:,"}}], "messages", "reads no images"),
    ],
)
async def test_content_that_is_no_text_is_refused_by_name(
    gateway: Gateway, content: object, param: str, message: str
) -> None:
    body = {"model": "tiny-chat", "messages": [{"role": "user", "content": content}]}
    response = await gateway.post("/v1/chat/completions", json=body, status=422)
    error = response.json()["error"]
    assert error["param"] == param
    assert message in error["message"]


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"type": "object"}),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}, SCHEMA),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}},
            SCHEMA,
        ),
    ],
)
async def test_response_formats_reach_the_engine(
    gateway: Gateway, client: AsyncOpenAI, form: dict[str, object], wanted: object
) -> None:
    await client.chat.completions.create(**CHAT, response_format=form)
    sent = gateway.inference.calls[-1].options.json_schema
    assert (None if sent is None else json.loads(sent)) == wanted


@pytest.mark.parametrize("extra", [{"regex": "a+"}, {"choices": ["a", "b"]}])
async def test_expressions_and_choices_are_extensions(
    gateway: Gateway, client: AsyncOpenAI, extra: dict[str, object]
) -> None:
    await client.chat.completions.create(**CHAT, extra_body=extra)
    sent = gateway.inference.calls[-1].options.model_dump(exclude_none=True)
    assert {name: sent[name] for name in extra} == extra


@pytest.mark.parametrize(
    "extra",
    [
        {"response_format": {"type": "xml"}},
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "json_object"}, "regex": "a"},
        {"response_format": {"type": "json_object"}, "stop": "a"},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"enum": ["a" * 70_000]}},
            }
        },
    ],
)
async def test_formats_that_cannot_be_are_refused(
    client: AsyncOpenAI, extra: dict[str, object]
) -> None:
    with pytest.raises(openai.UnprocessableEntityError):
        await client.chat.completions.create(**CHAT, extra_body=extra)


def picture(*words: str) -> list[dict[str, object]]:
    """One message: an image, and words about it."""
    parts: list[dict[str, object]] = [{"type": "text", "text": text} for text in words]
    image = {"type": "image_url", "image_url": {"url": RED, "detail": "low"}}
    return [{"role": "user", "content": [*parts, image]}]


@pytest.fixture
async def captioner(make_gateway: MakeGateway) -> AsyncIterator[AsyncOpenAI]:
    limits = Limits(max_total_tokens=16)
    gateway = make_gateway([*models(), loaded("caption", image=IMAGE, limits=limits)])
    async with connected(gateway) as made:
        yield made


async def test_a_captioner_describes_the_image_of_a_message(captioner: AsyncOpenAI) -> None:
    chat = captioner.chat.completions
    done = await chat.create(model="tiny-caption", messages=picture())
    (choice,) = done.choices
    assert (choice.message.content, choice.finish_reason) == ("picture", "stop")
    assert done.object == "chat.completion"
    assert done.usage.completion_tokens > 0
    done = await chat.create(
        model="tiny-caption", messages=picture("a"), max_tokens=1, temperature=0
    )
    assert done.choices[0].message.content == "a picture"  # the caption begins with the words


async def test_a_caption_is_streamed(captioner: AsyncOpenAI) -> None:
    fields = {"stream": True, "stream_options": {"include_usage": True}}
    stream = await captioner.chat.completions.create(
        model="tiny-caption", messages=picture("a"), **fields
    )
    events = [event async for event in stream]
    choices = [event.choices[0] for event in events if event.choices]
    assert "".join(choice.delta.content or "" for choice in choices) == "a picture"
    assert choices[-1].finish_reason == "stop"
    assert events[-1].usage is not None


@pytest.mark.parametrize(
    ("fields", "is_sampled"),
    [
        ({"temperature": 0.7, "top_p": 0.9, "seed": 3}, True),
        ({"temperature": 0, "top_p": 1}, False),
    ],
)
async def test_parameters_of_sampling_draw_a_caption(
    make_gateway: MakeGateway, fields: dict[str, object], is_sampled: bool
) -> None:
    gateway = make_gateway()
    request = {"model": "tiny-caption", "messages": picture(), **fields}
    await gateway.post("/v1/chat/completions", json=request)
    options = gateway.inference.calls[0].options
    assert options.do_sample is is_sampled
    assert (options.temperature, options.seed) == ((0.7, 3) if is_sampled else (None, None))


async def test_an_image_that_cannot_be_read_and_no_image_are_refused(
    captioner: AsyncOpenAI,
) -> None:
    broken = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
    message: list[dict[str, object]] = [{"role": "user", "content": broken}]
    with pytest.raises(openai.APIStatusError) as refused:
        await captioner.chat.completions.create(model="tiny-caption", messages=message)
    assert refused.value.status_code == 415
    with pytest.raises(openai.NotFoundError, match="send it one image_url part") as missing:
        await captioner.chat.completions.create(model="tiny-caption", messages=HELLO)
    assert missing.value.code == "model_not_chat"


async def test_completion_has_the_form_of_openai(client: AsyncOpenAI) -> None:
    done = await client.completions.create(model=COMPLETER, prompt="a b")
    assert (done.object, done.model) == ("text_completion", COMPLETER)
    assert done.id.startswith("cmpl-")
    (choice,) = done.choices
    assert (choice.index, choice.text, choice.finish_reason) == (0, "a b", "stop")
    assert choice.logprobs is None
    assert done.usage.total_tokens == done.usage.prompt_tokens + done.usage.completion_tokens


async def test_outputs_of_several_prompts_follow_each_other(client: AsyncOpenAI) -> None:
    done = await client.completions.create(model=COMPLETER, prompt=["a", "b", "a b"], n=2)
    assert [choice.index for choice in done.choices] == [0, 1, 2, 3, 4, 5]
    assert [choice.text for choice in done.choices] == ["a", "a", "b", "b", "a b", "a b"]


async def test_parameters_of_completions_reach_the_task(
    gateway: Gateway, client: AsyncOpenAI
) -> None:
    await client.completions.create(
        model=COMPLETER,
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


async def test_sixteen_tokens_are_the_default(gateway: Gateway, client: AsyncOpenAI) -> None:
    for given in ({}, {"max_tokens": None}):
        await client.completions.create(model=COMPLETER, prompt="a", **given)
        assert gateway.inference.calls[-1].options.max_new_tokens == 16


async def test_log_probabilities_of_completions_have_the_form_of_openai(
    client: AsyncOpenAI,
) -> None:
    done = await client.completions.create(model=COMPLETER, prompt="a b", logprobs=2)
    logprobs = done.choices[0].logprobs
    assert logprobs.tokens == ["a", "b", "</s>"]
    assert logprobs.token_logprobs == [-0.25] * len(logprobs.tokens or ())
    assert logprobs.text_offset == [0, 2, 3]
    assert sorted((logprobs.top_logprobs or [{}])[0].values()) == [-1.5, -0.25]


async def test_without_alternatives_there_are_no_top_log_probabilities(client: AsyncOpenAI) -> None:
    done = await client.completions.create(model=COMPLETER, prompt="a b", logprobs=0)
    assert done.choices[0].logprobs is not None
    assert done.choices[0].logprobs.top_logprobs is None
    assert done.choices[0].logprobs.tokens


@pytest.mark.parametrize("with_usage", [False, True])
async def test_stream_of_completions_is_read_by_openais_client(
    client: AsyncOpenAI, with_usage: bool
) -> None:
    stream = await client.completions.create(
        model=COMPLETER,
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


async def test_retries_of_the_client_wait_as_long_as_they_are_told(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connected(gateway).with_options(max_retries=2)
    gateway.inference.failures[COMPLETER] = Overloaded("full", retry_after_s=1)
    waited: list[float] = []

    async def wait(seconds: float) -> None:
        waited.append(seconds)
        gateway.inference.failures.clear()

    monkeypatch.setattr("openai._base_client.anyio.sleep", wait)
    done = await client.completions.create(model=COMPLETER, prompt="a")
    assert done.choices[0].text == "a"
    assert waited == [1.0]


TEXTS = ["a", "a b"]


async def native(gateway: Gateway, **body: Any) -> list[list[float]]:
    response = await gateway.http.post("/v1/embed", json=body)
    return [item["embedding"] for item in response.json()["data"]]


async def test_embeddings_are_those_of_the_native_route(
    gateway: Gateway, client: AsyncOpenAI
) -> None:
    wanted = await native(gateway, model=EMBEDDER, texts=TEXTS)
    for encoding in ({}, {"encoding_format": "float"}):  # by default the client asks for base64
        found = await client.embeddings.create(model=EMBEDDER, input=TEXTS, **encoding)
        assert [item.index for item in found.data] == [0, 1]
        np.testing.assert_allclose([item.embedding for item in found.data], wanted, atol=1e-7)
    assert (found.object, found.model) == ("list", EMBEDDER)
    assert found.usage.prompt_tokens == found.usage.total_tokens > 0


async def test_dimensions_are_the_first_numbers_at_unit_length(
    gateway: Gateway, client: AsyncOpenAI
) -> None:
    (whole,) = await native(gateway, model=EMBEDDER, texts="a")
    found = await client.embeddings.create(model=EMBEDDER, input="a", dimensions=2)
    wanted = np.array(whole[:2]) / np.linalg.norm(whole[:2])
    np.testing.assert_allclose(found.data[0].embedding, wanted, atol=1e-6)
    for dimensions in (len(whole), None):
        given = {} if dimensions is None else {"dimensions": dimensions}
        found = await client.embeddings.create(model=EMBEDDER, input="a", **given)
        np.testing.assert_allclose(found.data[0].embedding, whole, atol=1e-7)


async def test_images_are_a_modality(gateway: Gateway, client: AsyncOpenAI) -> None:
    image = base64.b64encode(image_file("red")).decode()
    found = await client.embeddings.create(
        model=EMBEDDER, input=image, extra_body={"modality": "image"}
    )
    wanted = await native(gateway, model=EMBEDDER, images=image)
    np.testing.assert_allclose([found.data[0].embedding], wanted, atol=1e-7)


async def test_what_is_no_image_is_refused(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        await client.embeddings.create(
            model=EMBEDDER, input="abcd", extra_body={"modality": "image"}
        )
    assert refused.value.status_code == 415
    assert refused.value.param == "input.0"


LONG = "a " * 40
TOOL = {"extra_body": {"tools": [{"type": "function"}]}}
CAPTION = {"model": "tiny-caption", "messages": picture()}
COMPLETION = {"model": COMPLETER, "prompt": "a"}
EMBEDDING = {"model": EMBEDDER, "input": "a"}


@pytest.mark.parametrize(
    ("required", "fields", "param", "message"),
    [
        (CHAT, {"temperature": -1}, "temperature", ""),
        (CHAT, {"messages": []}, "messages", ""),
        (CHAT, {"messages": [{"role": "user", "content": LONG}]}, "messages", ""),
        (CHAT, TOOL, "tools", ""),
        (CHAT, {"top_logprobs": 2}, "top_logprobs", ""),
        (CHAT, {"max_tokens": 1, "max_completion_tokens": 1}, "max_tokens", ""),
        (CHAT, {"n": 2, "stream": True}, "n", ""),
        (CAPTION, {"messages": picture() + picture()}, "messages", ""),
        (CAPTION, {"messages": [{"role": "system", "content": "a"}, *picture()]}, "messages", ""),
        (CAPTION, {"messages": [{**picture()[0], "role": "system"}]}, "messages", ""),
        (CAPTION, {"logprobs": True}, "logprobs", ""),
        (CAPTION, {"n": 2}, "n", ""),
        (CAPTION, {"stop": "a"}, "stop", ""),
        (CAPTION, {"response_format": {"type": "json_object"}}, "response_format", ""),
        (CAPTION, {"max_tokens": 1, "max_completion_tokens": 1}, "max_tokens", ""),
        (CAPTION, {"messages": picture(LONG.strip())}, "messages", ""),
        (COMPLETION, {"prompt": []}, "prompt", "at least 1 item"),
        (COMPLETION, {"prompt": [1, 2]}, "prompt", "token ids are not served"),
        (COMPLETION, {"prompt": [[1, 2]]}, "prompt", "token ids are not served"),
        (COMPLETION, {"prompt": LONG}, "prompt.0", "tokens"),
        (COMPLETION, {"prompt": ["a", LONG]}, "prompt.1", "tokens"),
        (COMPLETION, {"suffix": "b"}, "suffix", "leave suffix out"),
        (COMPLETION, {"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        (COMPLETION, {"logprobs": 21}, "logprobs", "less than or equal to 20"),
        (COMPLETION, {"n": 2, "stream": True}, "n", "stream"),
        (COMPLETION, TOOL, "tools", ""),
        (EMBEDDING, {"input": []}, "input", "at least 1 item"),
        (EMBEDDING, {"input": [1, 2]}, "input", "token ids are not served"),
        (EMBEDDING, {"input": LONG * 10}, "input.0", "tokens"),
        (EMBEDDING, {"input": ["a", LONG * 10]}, "input.1", "tokens"),
        (EMBEDDING, {"dimensions": 0}, "dimensions", "greater than or equal to 1"),
        (EMBEDDING, {"dimensions": 4096}, "dimensions", "have 3"),
        (EMBEDDING, {"encoding_format": "int8"}, "encoding_format", "'float' or 'base64'"),
        (EMBEDDING, {"extra_body": {"modality": "sound"}}, "modality", "'text' or 'image'"),
    ],
)
async def test_invalid_fields_are_named_in_a_nested_error(
    captioner: AsyncOpenAI,
    required: dict[str, Any],
    fields: dict[str, Any],
    param: str,
    message: str,
) -> None:
    kinds = {"messages": "chat.completions", "prompt": "completions", "input": "embeddings"}
    (kind,) = (kinds[name] for name in kinds if name in required)
    with pytest.raises(openai.UnprocessableEntityError) as refused:
        await attrgetter(kind)(captioner).create(**required | fields)
    assert (refused.value.param, refused.value.type) == (param, "invalid_request_error")
    assert message in str(refused.value)
