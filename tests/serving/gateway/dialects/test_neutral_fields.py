"""Fields that ask for nothing: null, `[]`, `{}`, false and a protocol's defaults are left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import huggingface_hub
import pytest
from openai.types.chat import ChatCompletionMessage
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsBase as CompletionParams
from openai.types.embedding_create_params import EmbeddingCreateParams as EmbeddingParams
from tritonclient.http import InferInput, InferRequestedOutput

from inference.tasks import TASKS
from tests.serving.gateway.conftest import (
    GREEDY,
    Gateway,
    MakeGateway,
    loaded,
)
from tests.serving.gateway.dialects.test_open_inference import INFER, models
from tests.serving.gateway.dialects.test_open_inference import body as tensors
from tests.serving.gateway.dialects.test_openai_chat import RED
from tests.tasks.models import CHAT as SECTION
from triptych.messages import ClosedMessage

EMPTY: tuple[object, ...] = (None, [], {}, False)
HELLO = [{"role": "user", "content": "a b"}]
SHOWN = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": RED}}]}]
CHAT = "/v1/chat/completions"
OPENAI: dict[str, tuple[str, type, dict[str, Any]]] = {
    "chat": (CHAT, ChatParams, {"model": "tiny-chat", "messages": HELLO}),
    "caption": (CHAT, ChatParams, {"model": "tiny-caption", "messages": SHOWN}),
    "completions": (
        "/v1/completions",
        CompletionParams,
        {"model": "tiny-generate", "prompt": "a b", "max_tokens": 4},
    ),
    "embeddings": (
        "/v1/embeddings",
        EmbeddingParams,
        {"model": "tiny-zero-shot", "input": "a"},
    ),
}
DEFAULTS: dict[str, object] = {
    "best_of": 1,
    "echo": False,
    "encoding_format": "float",
    "frequency_penalty": 0,
    "function_call": "none",
    "functions": [],
    "logit_bias": {},
    "logprobs": False,
    "metadata": {},
    "modalities": ["text"],
    "n": 1,
    "parallel_tool_calls": True,
    "presence_penalty": 0,
    "response_format": {"type": "text"},
    "service_tier": "auto",
    "store": False,
    "stream": False,
    "temperature": 1,
    "tool_choice": "none",
    "tools": [],
    "top_p": 1,
    "verbosity": "medium",
}
"""Of OpenAI's API, as its reference documents them."""
ASKING: dict[str, object] = {
    "audio": {"voice": "alloy", "format": "wav"},
    "function_call": {"name": "f"},
    "functions": [{"name": "f"}],
    "metadata": {"a": "b"},
    "modalities": ["text", "audio"],
    "parallel_tool_calls": 1,
    "prediction": {"type": "content", "content": "a"},
    "reasoning_effort": "high",
    "service_tier": "flex",
    "store": True,
    "tool_choice": "required",
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "verbosity": "low",
    "web_search_options": {},
    "unknown": 0,
}
HF = {
    "translate/tiny-translate": "Translation",
    "classify/tiny-classify": "TextClassification",
    "fill-mask/tiny-fill-mask": "FillMask",
    "generate/tiny-generate": "TextGeneration",
    "tag/tiny-tag": "TokenClassification",
    "embed/tiny-zero-shot": "FeatureExtraction",
}


@pytest.fixture
def gateway(make_gateway: MakeGateway) -> Gateway:
    chat = loaded("chat", SECTION, generation=GREEDY)
    return make_gateway([*models(), chat])


async def expect(gateway: Gateway, path: str, body: Mapping[str, Any], status: int = 200) -> Any:
    answer = await gateway.http.post(path, json=body)
    assert answer.status_code == status, (body, answer.text)
    return answer.json()


@pytest.mark.parametrize("name", OPENAI)
async def test_each_optional_field_of_openais_client_may_be_null_or_its_default(
    gateway: Gateway, name: str
) -> None:
    path, parameters, required = OPENAI[name]
    optional = parameters.__annotations__.keys() - required.keys()
    assert len(optional) >= 3
    await expect(gateway, path, {**dict.fromkeys(optional), **required})
    defaults = {field: value for field, value in DEFAULTS.items() if field in optional}
    if name != "chat":
        defaults.pop("logprobs", None)
    for field, value in defaults.items():
        await expect(gateway, path, {field: value, **required})
    await expect(gateway, path, {**defaults, **required})


@pytest.mark.parametrize("name", ["chat", "caption"])
async def test_what_is_not_served_is_refused_by_name(gateway: Gateway, name: str) -> None:
    path, _, required = OPENAI[name]
    for field, value in ASKING.items():
        told = (await expect(gateway, path, {field: value, **required}, 422))["error"]
        assert told["param"] == field


async def test_an_answer_is_a_message_of_the_next_request(gateway: Gateway) -> None:
    base = {"model": "tiny-chat", "max_tokens": 2}
    answer = await expect(gateway, CHAT, {**base, "messages": HELLO})
    own = answer["choices"][0]["message"]
    for message in (
        own,
        ChatCompletionMessage.model_validate(own).model_dump(),
        {**own, "tool_calls": [], "function_call": {}, "annotations": [], "audio": None},
        {**own, "content": [{"type": "text", "text": "a", "annotations": [], "cache": None}]},
    ):
        short = {**message, "content": "a"} if message["content"] == own["content"] else message
        await expect(gateway, CHAT, {**base, "messages": [short]})
    called = {**own, "tool_calls": [{"id": "a", "type": "function"}]}
    told = await expect(gateway, CHAT, {**base, "messages": [called]}, 422)
    assert told["error"]["param"] == "messages.0.tool_calls"


@pytest.mark.parametrize("path", HF)
async def test_each_optional_field_of_hugging_faces_client_may_be_null(
    gateway: Gateway, path: str
) -> None:
    name = HF[path]
    top = _fields(f"{name}Input")
    body: dict[str, Any] = {**dict.fromkeys(top), "inputs": "a b c d picture"}
    await expect(gateway, f"/hf/{path}", body)
    if "parameters" not in top:
        return
    kind = "TextGenerationInputGenerateParameters" if name == "TextGeneration" else None
    fields = _fields(kind or f"{name}Parameters")
    await expect(gateway, f"/hf/{path}", {**body, "parameters": dict.fromkeys(fields)})
    for field in fields:
        for empty in ([], {}) if field != "ignore_labels" else ([],):
            await expect(gateway, f"/hf/{path}", {**body, "parameters": {field: empty}})


async def test_paths_of_tgi_and_tei_take_their_servers_defaults(gateway: Gateway) -> None:
    for stop in ([], None, ["."]):
        await expect(gateway, "/generate", {"inputs": "a", "parameters": {"stop": stop}})
    defaults = {"watermark": False, "decoder_input_details": False, "adapter_id": None}
    await expect(gateway, "/generate", {"inputs": "a", "parameters": defaults})
    reading = {"truncate": False, "truncation_direction": "Right"}
    await expect(gateway, "/embed", {"inputs": "a", "normalize": True, **reading})
    scoring = {"raw_scores": False, "return_text": False}
    await expect(gateway, "/rerank", {"query": "a", "texts": ["b"], **scoring, **reading})
    scores = {"raw_scores": False, **reading}
    await expect(gateway, "/predict", {"inputs": "a", **scores})
    await expect(gateway, "/embed", {"inputs": "a", "truncation_direction": "Up"}, 422)


async def test_tensors_take_parameters_that_change_nothing(gateway: Gateway) -> None:
    neutral = {
        "sequence_id": 0,
        "sequence_start": False,
        "sequence_end": False,
        "priority": 0,
        "timeout": 0,
        "binary_data_output": False,
        "headers": {},
        "content_type": None,
    }
    body = tensors()
    await expect(gateway, INFER, {**body, "parameters": neutral, "outputs": []})
    for tensor in body["inputs"]:
        tensor["parameters"] = {"binary_data": False, "classification": 0}
    await expect(gateway, INFER, body)
    for name, value in (("priority", 1), ("sequence_id", 4), ("mine", "a"), ("timeout", True)):
        told = await expect(gateway, INFER, {**body, "parameters": {name: value}}, 422)
        assert f"parameters.{name}" in told["error"]
    assert InferInput("a", [1], "INT32")._get_tensor()["name"] == "a"
    assert InferRequestedOutput("a", binary_data=False)._get_tensor()["name"] == "a"


async def test_every_optional_field_of_our_own_messages_may_ask_for_nothing(
    gateway: Gateway,
) -> None:
    for task in TASKS.values():
        request = task.declaration.request
        for name, info in request.model_fields.items():
            for empty in EMPTY:
                if info.is_required() or (empty is False and bool in _kinds(info.annotation)):
                    continue
                if empty is not None and name in request.defaults:
                    continue
                assert empty is False or request._is_left_out(name, empty), (task.name, name)
        assert issubclass(request, ClosedMessage)
    for empty in EMPTY:
        await expect(gateway, "/v1/translate", {"texts": "a", "source": "es", "tempo": empty})
    for value in (0, "", True):
        await expect(gateway, "/v1/translate", {"texts": "a", "source": "es", "tempo": value}, 422)
    history = {"messages": [{"role": "user", "content": "a", "name": None}]}
    await expect(gateway, "/v1/chat", history)


def _fields(name: str) -> list[str]:
    return [field.name for field in dataclasses.fields(getattr(huggingface_hub, name))]


def _kinds(annotation: Any) -> tuple[Any, ...]:
    return getattr(annotation, "__args__", (annotation,))


async def test_libretranslates_fields_may_ask_for_nothing(gateway: Gateway) -> None:
    body = {"q": "a", "source": "es", "target": "en"}
    for field in ("format", "alternatives", "api_key"):
        for empty in (None, [], {}):
            await expect(gateway, "/translate", {**body, field: empty})
    await expect(gateway, "/translate", {**body, "format": "", "alternatives": ""})
    for field, value in (("format", "pdf"), ("alternatives", -1), ("q", []), ("source", None)):
        await expect(gateway, "/translate", {**body, field: value}, 400)
