"""Why an answer ended and how many tokens it has, in every API: as the engine says."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Any

import pytest

from inference.bundle.manifest import Graph, Limits, Role, Tensor
from inference.engine import codec
from inference.engine.engine import Engine
from inference.engine.validation import RequestValidator
from inference.generation import FinishReason, Generation
from inference.sequences import Finished, TokenChunk
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.model_calls import GenerateCall
from tests.inference.engine.fake_runner import FakeRunner, hashed_logits
from tests.inference.tiny_models import IMAGE, STEP, WordTokenizer, image_file, manifest, served
from tests.serving.gateway.conftest import Gateway, MakeGateway
from tests.tasks.models import CHAT as SECTION

WORDS = "user assistant : w1 w2 w3 w4 w5 w6 w7 W1 W3 W5 W6. w2. w4. w5. w7.".split()
VOCABULARY = 3 + len(WORDS)
END = 1
OWN_LIMIT = 11
"""Tokens that a model generates where the request sets no limit."""
PICTURE = base64.b64encode(image_file("red")).decode()
SOURCE = Tensor(name="ids", dtype="int64", shape=("B", "S"), role=Role.SOURCE_TOKENS)
PIXELS = Tensor(name="pixels", dtype="uint8", shape=("B", 4, 4, 3), role=Role.PIXELS)
RULES = Generation(
    pad_token_id=0, decoder_start_ids=(2,), eos_token_ids=(END,), max_new_tokens=OWN_LIMIT
)
LIMITS = range(1, 16)
PAUSE = 20
"""Turns of the event loop in which a chunk is sent."""


def generator(task: str, section: dict[str, Any], reads: Tensor | None, **fields: Any) -> Any:
    graphs = {"step": STEP}
    if reads is not None:
        graphs["admit"] = Graph(file="admit.onnx", inputs=(reads,), outputs=())
    tokenizer = WordTokenizer()
    tokenizer.words += WORDS
    described = manifest(
        task,
        section,
        graphs=graphs,
        generation=RULES,
        limits=Limits(max_input_tokens=64, max_total_tokens=None),
        vocabulary_size=VOCABULARY,
        **fields,
    )
    return served(described, tokenizer)


def models() -> list[LoadedModel]:
    return [
        generator("caption", {}, PIXELS, image=IMAGE),
        generator("translate", {"languages": [("es", "en")]}, SOURCE),
        generator("generate", {}, None),
        generator("chat", SECTION, None),
    ]


class Answering:
    """A gateway whose generators are engines, and the results that these had."""

    def __init__(self, gateway: Gateway, end_bias: float) -> None:
        self.http = gateway.http
        self.results: list[Finished] = []
        self._rules: dict[str, Generation] = {}
        self._engines: dict[str, Engine] = {}
        for model in gateway.service.catalog.models:
            described = model.manifest
            runner = FakeRunner(hashed_logits(VOCABULARY, end_bias), VOCABULARY)
            self._engines[described.name] = Engine(runner, RequestValidator(described))
            self._rules[described.name] = model.generation
        gateway.inference._generated = self._generated
        self._stream, gateway.inference.stream = gateway.inference.stream, self._paused

    async def _paused(
        self, call: GenerateCall, timeout_s: float
    ) -> AsyncGenerator[TokenChunk | Finished, None]:
        """Tokens one by one, each of which is sent before the next one is there."""
        async for item in self._stream(call, timeout_s):
            for _ in range(PAUSE):
                await asyncio.sleep(0)
            yield item

    def _generated(self, call: GenerateCall) -> Finished:
        tensors = codec.encode_request(call.inputs, call.options)
        request = codec.decode_request(tensors, self._rules[call.model])
        result = self._engines[call.model].generate(request)
        self.results.append(codec.decode_finished(codec.encode_finished(result, ())))
        return self.results[-1]

    def close(self) -> None:
        for engine in self._engines.values():
            engine.close()

    def expected(self, results: Sequence[Finished]) -> tuple[str, int]:
        """The reason and the number of tokens of an answer's best hypotheses."""
        best = [finished.best for finished in results]
        tokens = sum(len(one.token_ids) for one in best)
        return FinishReason.of_all(one.finish_reason for one in best), tokens

    async def post(self, path: str, body: dict[str, Any]) -> tuple[Any, tuple[str, int], Any]:
        """The answer, what the engine said of it, and the headers."""
        before = len(self.results)
        response = await self.http.post(path, json=body)
        assert response.status_code == 200, response.text
        said = self.expected(self.results[before:])
        if response.headers["content-type"].startswith("application/json"):
            return response.json(), said, response.headers
        lines = [line[5:] for line in response.text.split("\n") if line.startswith("data:")]
        events = [json.loads(line) for line in lines if "[DONE]" not in line]
        return events, said, response.headers


@pytest.fixture(params=[-9.0, 2.0], ids=["long", "short"])
def answering(make_gateway: MakeGateway, request: pytest.FixtureRequest) -> Iterator[Answering]:
    made = Answering(make_gateway(models()), request.param)
    yield made
    made.close()


Read = Callable[[Any], tuple[str, int | None]]


def native(answer: Any) -> tuple[str, int]:
    if isinstance(answer, list):
        assert [one.get("finish_reason") for one in answer[:-1]] == [None] * (len(answer) - 1)
        return answer[-1]["finish_reason"], answer[-1]["usage"]["completion_tokens"]
    return answer["data"][0]["finish_reason"], answer["usage"]["completion_tokens"]


def openai(answer: Any) -> tuple[str, int | None]:
    if isinstance(answer, list):
        reasons = [one["choices"][0]["finish_reason"] for one in answer if one["choices"]]
        assert reasons[:-1] == [None] * (len(reasons) - 1)
        return reasons[-1], answer[-1]["usage"]["completion_tokens"]
    return answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]


def tgi(answer: Any) -> tuple[str, int]:
    details = answer[-1]["details"]
    if "token" in answer[-1]:  # events
        tokens = [event["token"] for event in answer]
        assert [event["index"] for event in answer] == list(range(1, len(answer) + 1))
        assert answer[-1]["details"]["generated_tokens"] == len(answer)
    else:
        tokens = details["tokens"]
    assert len(tokens) == details["generated_tokens"]
    is_end = tokens[-1]["id"] == END
    assert {"length": True, "eos_token": is_end, "stop_sequence": not is_end}[
        details["finish_reason"]
    ]
    is_cut = details["finish_reason"] == "length"
    return "length" if is_cut else "stop", details["generated_tokens"]


def item(answer: Any) -> tuple[str, None]:
    return answer[0]["finish_reason"], None


SHOWN = {"type": "image_url", "image_url": {"url": f"data:;base64,{PICTURE}"}}
ASKED = [{"role": "user", "content": [SHOWN]}]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USAGE = {"stream_options": {"include_usage": True}}
ROUTES: dict[str, tuple[str, Callable[[int | None], dict[str, Any]], Read]] = {
    "caption": ("/v1/caption", lambda n: {"images": PICTURE, "max_new_tokens": n}, native),
    "hf caption": (
        "/hf/caption/tiny-caption",
        lambda n: {"inputs": PICTURE, "parameters": {"max_new_tokens": n}},
        item,
    ),
    "chat caption": (
        CHAT,
        lambda n: {"model": "tiny-caption", "messages": ASKED, "max_tokens": n},
        openai,
    ),
    "chat": (
        CHAT,
        lambda n: {
            "model": "tiny-chat",
            "messages": [{"role": "user", "content": "w1 w2"}],
            "max_tokens": n,
        },
        openai,
    ),
    "translate": ("/v1/translate", lambda n: {"texts": "w1 w2.", "max_new_tokens": n}, native),
    "translate a paragraph": (
        "/v1/translate",
        lambda n: {"texts": "W1 w2. W3 w4 w5. W6.", "max_new_tokens": n},
        native,
    ),
    "generate": ("/v1/generate", lambda n: {"prompts": "w1 w2", "max_new_tokens": n}, native),
    "completions": (
        COMPLETIONS,
        lambda n: {"model": "tiny-generate", "prompt": "w1 w2", "max_tokens": n},
        openai,
    ),
    "tgi": (
        "/hf/generate/tiny-generate",
        lambda n: {"inputs": "w1 w2", "parameters": {"max_new_tokens": n, "details": True}},
        tgi,
    ),
}
STREAMS = {
    name: (path, body, read) for name, (path, body, read) in ROUTES.items() if name != "hf caption"
}


@pytest.mark.parametrize("name", ROUTES)
async def test_a_whole_answer_ends_as_the_engine_says(answering: Answering, name: str) -> None:
    path, body, read = ROUTES[name]
    reasons = set()
    for limit in (*LIMITS, None):
        answer, (reason, tokens), _ = await answering.post(path, body(limit))
        found, count = read(answer)
        assert (found, count) == (reason, count and tokens), limit
        reasons.add(reason)
    assert "length" in reasons


@pytest.mark.parametrize("name", STREAMS)
async def test_a_stream_ends_as_the_whole_answer(answering: Answering, name: str) -> None:
    path, body, read = STREAMS[name]
    options = USAGE if path in (CHAT, COMPLETIONS) else {}
    for limit in (*LIMITS, None):
        whole, said, _ = await answering.post(path, body(limit))
        stream, again, _ = await answering.post(path, {**body(limit), "stream": True, **options})
        assert said == again
        assert read(stream) == read(whole) == said, limit


async def test_an_end_token_in_the_last_place_is_no_limit(make_gateway: MakeGateway) -> None:
    made = Answering(make_gateway(models()), 2.0)
    for name, (path, body, read) in ROUTES.items():
        _, (reason, tokens), _ = await made.post(path, body(None))
        if name == "translate a paragraph":
            continue
        assert (reason, tokens < OWN_LIMIT) == ("stop", True), name
        answer, _, _ = await made.post(path, body(tokens))
        assert read(answer)[0] == "stop", name
        answer, _, _ = await made.post(path, body(tokens - 1))
        assert read(answer)[0] == "length", name
    made.close()


async def test_each_hypothesis_has_its_reason(answering: Answering) -> None:
    for path, body in (
        ("/v1/caption", {"images": PICTURE, "n": 3, "num_beams": 3, "max_new_tokens": 5}),
        ("/v1/translate", {"texts": "w1 w2", "n": 3, "num_beams": 3, "max_new_tokens": 5}),
        ("/v1/generate", {"prompts": "w1 w2", "n": 3, "num_beams": 3, "max_new_tokens": 5}),
    ):
        answer, _, _ = await answering.post(path, body)
        (result,) = answering.results[-1:]
        (data,) = answer["data"]
        said = [one.finish_reason for one in result.hypotheses]
        assert [one["finish_reason"] for one in data["alternatives"]] == said
        assert data["finish_reason"] == said[0]
        assert answer["usage"]["completion_tokens"] == result.generated_tokens


@pytest.mark.parametrize("kind", ["text", "html"])
@pytest.mark.parametrize("texts", ["W1 w2.", ["W1 w2.", "W3 w4. W5 w6 w7."], "1 2 3"])
async def test_libretranslate_has_the_reason_in_a_header(
    answering: Answering, texts: str | list[str], kind: str
) -> None:
    body = {"q": texts, "source": "es", "target": "en", "format": kind}
    _, (reason, _), headers = await answering.post("/translate", body)
    assert headers["x-finish-reason"] == reason


async def test_a_cut_alternative_is_in_libretranslates_header(answering: Answering) -> None:
    body = {"q": "W1 w2.", "source": "es", "target": "en", "alternatives": 2}
    _, _, headers = await answering.post("/translate", body)
    (result,) = answering.results
    reasons = [one.finish_reason for one in result.hypotheses]
    assert len(reasons) == 3
    assert headers["x-finish-reason"] == FinishReason.of_all(reasons)


async def test_a_translated_file_has_the_reason_in_a_header(answering: Answering) -> None:
    form = {"source": "es", "target": "en"}
    files = {"file": ("a.txt", b"W1 w2. W3 w4 w5.")}
    response = await answering.http.post("/translate_file", data=form, files=files)
    assert response.status_code == 200, response.text
    assert response.headers["x-finish-reason"] == answering.expected(answering.results)[0]


async def test_hugging_faces_translation_has_the_reason(answering: Answering) -> None:
    path, body = "/hf/translate/tiny-translate", {"inputs": "W1 w2. W3 w4 w5."}
    answer, (reason, _), _ = await answering.post(path, body)
    assert answer[0]["finish_reason"] == reason


@pytest.mark.parametrize("stop", ["w", "1", " "])
async def test_events_of_a_text_that_a_stop_string_ends_have_each_token_once(
    answering: Answering, stop: str
) -> None:
    body = {"inputs": "w1 w2", "parameters": {"details": True, "stop": [stop]}}
    (whole,), _, _ = await answering.post("/hf/generate/tiny-generate", body)
    events, _, _ = await answering.post("/hf/generate/tiny-generate", {**body, "stream": True})
    tokens = [token["id"] for token in whole["details"]["tokens"]]
    assert [event["token"]["id"] for event in events] == tokens
    assert events[-1]["generated_text"] == whole["generated_text"]
    told = events[-1]["details"]
    assert told["finish_reason"] == whole["details"]["finish_reason"]
    assert told["generated_tokens"] == len(tokens)
