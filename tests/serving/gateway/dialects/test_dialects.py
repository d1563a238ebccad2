"""What holds of every dialect, and fields that ask for nothing: null, empty, or a default."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import huggingface_hub
import pytest
from fastapi import Request, Response
from fastapi.responses import JSONResponse
from openai.types.chat import ChatCompletionMessage
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsBase as CompletionParams
from openai.types.embedding_create_params import EmbeddingCreateParams as EmbeddingParams
from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers
from tritonclient.http import InferInput, InferRequestedOutput

from inference.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    Overloaded,
    Quarantined,
    ServingError,
    TooLong,
    Unauthorized,
    Unavailable,
)
from inference.tasks import TASKS
from inference.tasks.generate import TASK as GENERATE
from inference.tasks.shared.model_calls import GenerateCall, InferCall, error_of, item_error
from inference.tasks.shared.served_task import AnyTask
from serving.gateway.dialects.huggingface.generation import GeneratingRequest, TokenEvents
from serving.gateway.http.router import Route, respond
from serving.gateway.requests.service import Service, TaskRequest, TaskResponse
from serving.gateway.server.app import create_app
from serving.settings.gateway_settings import DIALECTS, GatewaySettings
from tests.inference.tiny_models import cross_encoder
from tests.serving.gateway.conftest import (
    GREEDY,
    Gateway,
    MakeGateway,
    _with_tokenizer,
    http_client,
    loaded,
)
from tests.serving.gateway.dialects.test_open_inference import INFER, models
from tests.serving.gateway.dialects.test_open_inference import body as tensors
from tests.serving.gateway.dialects.test_openai import RED
from tests.tasks.models import CHAT as SECTION
from triptych.messages import Chunk, ClosedMessage, ErrorResponse, TokenLogprob
from triptych.tasks.generate import GenerateRequest

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
    "embeddings": ("/v1/embeddings", EmbeddingParams, {"model": "tiny-zero-shot", "input": "a"}),
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
    answer = await gateway.post(path, json=body, status=status)
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
    await expect(gateway, "/translate", {**body, "source": None}, 400)


ROUTE = "/complete"


class Ask(BaseModel):
    """The dialect's request."""

    q: str
    live: bool = False


class Lines:
    """Chunks as lines of text, numbered: a renderer may keep state."""

    media_type = "text/plain"

    def __init__(self) -> None:
        self._count = 0

    def chunks(self, chunks: Sequence[Chunk]) -> bytes:
        self._count += 1
        return f"{self._count}:{''.join(chunk.text for chunk in chunks)}\n".encode()

    def end(self) -> bytes:
        return b"end\n"

    def error(self, error: ServingError) -> bytes:
        return f"oops {error.wire}\n".encode()


class Plain:
    """Text in, text out."""

    shows_timings = False

    error = ErrorResponse

    def routes(self) -> list[Route]:
        async def complete(request: Request, service: Service) -> Response:
            return await respond(self, request, TASKS["generate"], service)

        return [Route(ROUTE, complete, methods=("POST",))]

    def authorise(self, headers: Headers) -> None:
        if headers.get("x-ticket") == "forged":
            raise Unauthorized("a forged ticket")

    async def parse(self, request: Request, task: AnyTask, service: Service) -> TaskRequest:
        ask = Ask.model_validate_json(await request.body())
        message = task.declaration.request(prompts=[ask.q], stream=ask.live)
        return TaskRequest(task, message, ROUTE)

    def render_answer(self, request: TaskRequest, response: TaskResponse) -> Response:
        return Response(response.data[0].text, media_type="text/plain")

    def render_stream(self, request: TaskRequest) -> Lines:
        return Lines()

    def render_error(self, error: ServingError) -> Response:
        return JSONResponse({"oops": error.wire}, status_code=418)


@pytest.fixture
async def plain(make_gateway: MakeGateway) -> Gateway:
    made = make_gateway()
    made.app = create_app(made.service, made.readiness, [Plain()])
    made.http = http_client(made.app)
    return made


async def test_a_request_and_its_answer_have_the_dialects_form(plain: Gateway) -> None:
    response = await plain.http.post(ROUTE, json={"q": "a b c"})
    assert (response.status_code, response.text) == (200, "a b c")
    assert response.headers["content-type"].startswith("text/plain")
    assert "x-queue-time" not in response.headers
    assert response.headers["x-request-id"]


async def test_a_stream_has_the_dialects_form(plain: Gateway) -> None:
    response = await plain.http.post(ROUTE, json={"q": "a b c", "live": True})
    assert response.headers["content-type"].startswith("text/plain")
    assert "x-queue-time" not in response.headers
    *lines, last = response.text.splitlines()
    assert last == "end"
    assert "".join(line.partition(":")[2] for line in lines) == "a b c"
    assert [int(line.partition(":")[0]) for line in lines] == [*range(1, len(lines) + 1)]


async def test_a_stream_that_fails_ends_in_the_dialects_form(plain: Gateway) -> None:
    plain.inference.breaks[2] = ValueError("secret")
    response = await plain.post(ROUTE, json={"q": "a b c", "live": True})
    assert response.text.splitlines()[-1] == "oops internal"
    assert "a" in response.text
    text = (await plain.http.get("/metrics")).text
    assert f'triptych_request_failure_total{{route="{ROUTE}",type="internal"}} 1.0' in text


@pytest.mark.parametrize(
    ("content", "headers", "name"),
    [
        (b"{", {}, "malformed_body"),
        (b"{}", {}, "invalid_request"),
        (json.dumps({"q": "x " * 5000}).encode(), {}, "too_long"),
        (b'{"q": "a"}', {"x-ticket": "forged"}, "unauthorized"),
        (b"x" * 2000, {}, "payload_too_large"),
    ],
)
async def test_errors_have_the_dialects_form(
    make_gateway: MakeGateway, content: bytes, headers: dict[str, str], name: str
) -> None:
    limit = 1024 if name == "payload_too_large" else 100_000
    made = make_gateway(payload_limit=limit)
    app = create_app(made.service, made.readiness, [Plain()])
    async with http_client(app) as http:
        response = await http.post(ROUTE, content=content, headers=headers)
        assert (response.status_code, response.json()) == (418, {"oops": name})
        metrics = (await http.get("/metrics")).text
    assert f'triptych_request_failure_total{{route="{ROUTE}",type="{name}"}} 1.0' in metrics


async def test_bugs_and_wrong_methods_have_the_dialects_form(plain: Gateway) -> None:
    plain.inference.failures["tiny-generate"] = ValueError("secret")
    response = await plain.http.post(ROUTE, json={"q": "a"})
    assert response.json() == {"oops": "internal"}
    response = await plain.http.get(ROUTE)
    assert (response.json(), response.headers["allow"]) == ({"oops": "method_not_allowed"}, "POST")


async def test_metrics_have_the_dialects_route(plain: Gateway) -> None:
    await plain.http.post(ROUTE, json={"q": "a"})
    text = (await plain.http.get("/metrics")).text
    for name in ("request_count_total", "request_inference_duration_seconds_count"):
        assert f'triptych_{name}{{route="{ROUTE}"}} 1.0' in text
    assert 'route="/v1/generate"' not in text


PATHS = {
    "openai": ("/v1/chat/completions", "/v1/completions", "/v1/embeddings"),
    "huggingface": ("/hf/translate/tiny-translate", "/hf/tiny-translate"),
    "tgi": ("/generate", "/generate_stream"),
    "tei": ("/embed", "/predict", "/rerank", "/similarity"),
    "libretranslate": ("/translate", "/detect", "/translate_file"),
    "openinference": ("/v2/models/tiny-zero-shot/infer",),
}


@pytest.mark.parametrize("name", DIALECTS)
async def test_a_dialect_that_is_switched_off_has_no_paths(
    make_gateway: MakeGateway, name: str
) -> None:
    others = ",".join(one for one in DIALECTS if one != name)
    gateway = make_gateway(models(), dialects=others)
    for one, paths in PATHS.items():
        for path in paths:
            response = await gateway.http.post(path, json={})
            assert (response.status_code == 404) == (one == name), path
    await gateway.get("/v2/health/ready")
    declared = (await gateway.http.get("/openapi.json")).json()["paths"]
    assert not {path for path in PATHS[name] if path in declared}
    assert (await gateway.http.post("/v1/translate", json={"texts": "a"})).status_code == 200


async def test_all_dialects_are_served_by_default_and_none_where_none_is_named(
    make_gateway: MakeGateway,
) -> None:
    every = (await make_gateway().http.get("/openapi.json")).json()["paths"]
    own = (await make_gateway(dialects="").http.get("/openapi.json")).json()["paths"]
    assert {"/translate", "/languages", "/generate", "/embed"} <= set(every) - set(own)
    assert {"/v1/translate", "/v1/models", "/health"} <= set(own)


def test_an_unknown_dialect_is_refused() -> None:
    with pytest.raises(ValidationError, match="libretranslate"):
        GatewaySettings(dialects="openai,babel")


async def test_errors_of_unknown_paths_have_the_form_of_the_paths_beside_them(
    plain: Gateway,
) -> None:
    for path in ("/v2/nothing", "/v2/models", "/v2/models/a/versions/1/infer", "/v2/repository"):
        answer = await plain.http.get(path)
        assert (answer.status_code, type(answer.json()["error"])) == (404, str)
    wrong = await plain.http.post("/v2/health/live")
    assert (wrong.status_code, type(wrong.json()["error"])) == (405, str)
    answer = await plain.http.get("/hf/nothing/a")
    assert set(answer.json()) == {"error", "error_type"}
    for path in ("/v1/nothing", "/v2x", "/", "nothing/v2"):
        answer = await plain.http.post(f"/{path.lstrip('/')}")
        assert answer.json()["error"]["message"]


async def test_one_model_is_the_entry_of_the_list(plain: Gateway) -> None:
    for entry in (await plain.http.get("/v1/models")).json()["data"]:
        assert (await plain.http.get(f"/v1/models/{entry['id']}")).json() == entry
    for name in ("no-such-model", "org%2Fno-such-model", "org/no-such-model"):
        absent = await plain.get(f"/v1/models/{name}", status=404)
        assert absent.json()["error"]["type"] == "unknown_model"
        assert "no-such-model" in absent.json()["error"]["message"]
    odd = await plain.get("/v1/models/what%20I%20wrote", status=404)
    assert "wrote" not in odd.text


KINDS = (Unavailable, Overloaded, DeadlineExceeded, InternalError, Quarantined)
LONG = " ".join("abcabcabc")
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"model": "tiny-generate", "prompt": ["a b", LONG]},
    "/translate": {"q": ["a b", LONG], "source": "es", "target": "en"},
    "/rerank": {"query": "a", "texts": ["a b", LONG]},
}
"""Each with two items, of which one is `LONG`."""


@pytest.fixture
def text_gateway(make_gateway: MakeGateway) -> Gateway:
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
    text_gateway: Gateway, path: str, kind: type[ServingError]
) -> None:
    text_gateway.inference.refusing = of_long(kind("no", retry_after_s=3))
    response = await text_gateway.http.post(path, json=BODIES[path])
    expected = 400 if path == "/translate" and kind is Quarantined else kind.http_status
    assert response.status_code == expected, response.text
    assert ("retry-after" in response.headers) == (kind in (Unavailable, Overloaded))
    assert len(text_gateway.inference.calls) > 1  # one item has not failed
    assert (
        f'type="{kind.wire}"' in text_gateway.exposed
        or f'error="{kind.wire}"' in text_gateway.exposed
    )


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.wire)
async def test_an_item_that_fails_keeps_its_kind_in_a_stream(
    text_gateway: Gateway, kind: type[ServingError]
) -> None:
    text_gateway.inference.refusing = of_long(kind("no"))
    body = {**BODIES["/v1/completions"], "stream": True}
    response = await text_gateway.post("/v1/completions", json=body)
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
