"""What holds of every dialect."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from fastapi import Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers

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
from inference.tasks.shared.items import error_of, item_error
from inference.tasks.shared.model_calls import GenerateCall, InferCall
from inference.tasks.shared.served_task import AnyTask
from serving.gateway.dialects.huggingface.generation import GeneratingRequest, TokenEvents
from serving.gateway.http.dialect import Route
from serving.gateway.http.handle_request import respond
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
from triptych.messages import Chunk, ErrorResponse, TokenLogprob
from triptych.tasks.generate import GenerateRequest

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
async def gateway(make_gateway: MakeGateway) -> Gateway:
    made = make_gateway()
    made.app = create_app(made.service, made.readiness, [Plain()])
    made.http = http_client(made.app)
    return made


async def test_a_request_and_its_answer_have_the_dialects_form(gateway: Gateway) -> None:
    response = await gateway.http.post(ROUTE, json={"q": "a b c"})
    assert (response.status_code, response.text) == (200, "a b c")
    assert response.headers["content-type"].startswith("text/plain")
    assert "x-queue-time" not in response.headers
    assert response.headers["x-request-id"]


async def test_a_stream_has_the_dialects_form(gateway: Gateway) -> None:
    response = await gateway.http.post(ROUTE, json={"q": "a b c", "live": True})
    assert response.headers["content-type"].startswith("text/plain")
    assert "x-queue-time" not in response.headers
    *lines, last = response.text.splitlines()
    assert last == "end"
    assert "".join(line.partition(":")[2] for line in lines) == "a b c"
    assert [int(line.partition(":")[0]) for line in lines] == [*range(1, len(lines) + 1)]


async def test_a_stream_that_fails_ends_in_the_dialects_form(gateway: Gateway) -> None:
    gateway.inference.breaks[2] = ValueError("secret")
    response = await gateway.http.post(ROUTE, json={"q": "a b c", "live": True})
    assert response.status_code == 200
    assert response.text.splitlines()[-1] == "oops internal"
    assert "a" in response.text
    text = (await gateway.http.get("/metrics")).text
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


async def test_bugs_and_wrong_methods_have_the_dialects_form(gateway: Gateway) -> None:
    gateway.inference.failures["tiny-generate"] = ValueError("secret")
    response = await gateway.http.post(ROUTE, json={"q": "a"})
    assert response.json() == {"oops": "internal"}
    response = await gateway.http.get(ROUTE)
    assert (response.json(), response.headers["allow"]) == ({"oops": "method_not_allowed"}, "POST")


async def test_other_routes_keep_their_own_dialect(gateway: Gateway) -> None:
    response = await gateway.http.post("/v1/generate", json={})
    assert response.json()["error"]["type"] == "invalid_request"
    assert (await gateway.http.get("/nothing")).json()["error"]["type"] == "unknown_route"


async def test_metrics_have_the_dialects_route(gateway: Gateway) -> None:
    await gateway.http.post(ROUTE, json={"q": "a"})
    text = (await gateway.http.get("/metrics")).text
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
    gateway = make_gateway(dialects=others)
    for one, paths in PATHS.items():
        for path in paths:
            response = await gateway.http.post(path, json={})
            assert (response.status_code == 404) == (one == name), path
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
    gateway: Gateway,
) -> None:
    for path in ("/v2/nothing", "/v2/models", "/v2/models/a/versions/1/infer", "/v2/repository"):
        answer = await gateway.http.get(path)
        assert (answer.status_code, type(answer.json()["error"])) == (404, str)
    wrong = await gateway.http.post("/v2/health/live")
    assert (wrong.status_code, type(wrong.json()["error"])) == (405, str)
    answer = await gateway.http.get("/hf/nothing/a")
    assert set(answer.json()) == {"error", "error_type"}
    for path in ("/v1/nothing", "/v2x", "/", "nothing/v2"):
        answer = await gateway.http.post(f"/{path.lstrip('/')}")
        assert answer.json()["error"]["message"]


async def test_one_model_is_the_entry_of_the_list(gateway: Gateway) -> None:
    for entry in (await gateway.http.get("/v1/models")).json()["data"]:
        assert (await gateway.http.get(f"/v1/models/{entry['id']}")).json() == entry
    for name in ("no-such-model", "org%2Fno-such-model", "org/no-such-model"):
        absent = await gateway.http.get(f"/v1/models/{name}")
        assert absent.status_code == 404
        assert absent.json()["error"]["type"] == "unknown_model"
        assert "no-such-model" in absent.json()["error"]["message"]
    odd = await gateway.http.get("/v1/models/what%20I%20wrote")
    assert odd.status_code == 404
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
    response = await text_gateway.http.post("/v1/completions", json=body)
    assert response.status_code == 200
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
