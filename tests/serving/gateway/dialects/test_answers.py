"""What clients are told of answers, in every API: why they ended, how many tokens, which ones."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, processors, trainers

from inference.bundle.inputs import TokenizerSpec
from inference.bundle.manifest import Graph, Limits, Role, Tensor
from inference.engine import codec
from inference.engine.engine import Engine
from inference.engine.request import RequestValidator
from inference.generation import Finished, FinishReason, Generation, TokenChunk, Top
from inference.processing.tokenizer_kinds import FastTokenizer
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.model_calls import GenerateCall
from tests.inference.engine.fake_runner import FakeRunner, hashed_logits
from tests.inference.processing.tokenizer_files import byte_pairs
from tests.inference.tiny_models import IMAGE, STEP, WordTokenizer, finished, manifest, served
from tests.serving.gateway.conftest import GREEDY, RED, Gateway, MakeGateway
from tests.tasks.models import CHAT as SECTION

WORDS = "user assistant : w1 w2 w3 w4 w5 w6 w7 W1 W3 W5 W6. w2. w4. w5. w7.".split()
VOCABULARY = 3 + len(WORDS)
END = 1
OWN_LIMIT = 11
"""Tokens that a model generates where the request sets no limit."""
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


def generators() -> list[LoadedModel]:
    return [
        generator("caption", {}, PIXELS, image=IMAGE),
        generator("translate", {"languages": [("es", "en")]}, SOURCE),
        generator("generate", {}, None),
        generator("chat", SECTION, None),
    ]


class Answering:
    """A gateway whose generators are engines, and the results that these had."""

    def __init__(self, gateway: Gateway, end_bias: float) -> None:
        self.gateway = gateway
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
        response = await self.gateway.post(path, json=body)
        said = self.expected(self.results[before:])
        if response.headers["content-type"].startswith("application/json"):
            return response.json(), said, response.headers
        lines = [line[5:] for line in response.text.split("\n") if line.startswith("data:")]
        events = [json.loads(line) for line in lines if "[DONE]" not in line]
        return events, said, response.headers


@pytest.fixture(params=[-9.0, 2.0], ids=["long", "short"])
def answering(make_gateway: MakeGateway, request: pytest.FixtureRequest) -> Iterator[Answering]:
    made = Answering(make_gateway(generators()), request.param)
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


SHOWN = {"type": "image_url", "image_url": {"url": f"data:;base64,{RED}"}}
ASKED = [{"role": "user", "content": [SHOWN]}]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USAGE = {"stream_options": {"include_usage": True}}
ROUTES: dict[str, tuple[str, Callable[[int | None], dict[str, Any]], Read]] = {
    "caption": ("/v1/caption", lambda n: {"images": RED, "max_new_tokens": n}, native),
    "hf caption": (
        "/hf/caption/tiny-caption",
        lambda n: {"inputs": RED, "parameters": {"max_new_tokens": n}},
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
    made = Answering(make_gateway(generators()), 2.0)
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
        ("/v1/caption", {"images": RED, "n": 3, "num_beams": 3, "max_new_tokens": 5}),
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
    response = await answering.gateway.post("/translate_file", data=form, files=files)
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


LINES = ["the world is not enough", "three big dogs run along the old street"]
TEXTS = ["😀", "é", "a😀b é c", " hello 漢字 the dogs", "\u0301x", "😀😀 the"]
MODEL = "tiny-generate"


def byte_level() -> Tokenizer:
    made = byte_pairs(300, ["<s>", "</s>"], LINES)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    return made


def trimming() -> Tokenizer:
    """As GPT-2's: offsets leave spaces out."""
    made = byte_pairs(300, ["<s>", "</s>"], LINES)
    made.post_processor = processors.ByteLevel(trim_offsets=True)
    return made


def nested() -> Tokenizer:
    """Its decoder is one of a sequence."""
    made = byte_level()
    made.decoder = decoders.Sequence([decoders.ByteLevel()])
    return made


def byte_fallback() -> Tokenizer:
    """As Llama's: bytes are tokens where the vocabulary lacks a character."""
    made = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    own = ["<s>", "</s>", "<unk>"]
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=340, special_tokens=[*own, *pieces], show_progress=False
    )
    made.train_from_iterator(LINES, trainer)
    described = json.loads(made.to_str())
    added = [one for one in described["added_tokens"] if one["content"] in own]
    return Tokenizer.from_str(json.dumps({**described, "added_tokens": added}))


KINDS = {made.__name__: made for made in (byte_level, trimming, nested, byte_fallback)}


class Writing:
    """A gateway whose generator writes given tokens, with alternatives that are given for each."""

    def __init__(self, make: MakeGateway, kind: Callable[[], Tokenizer], folder: Path) -> None:
        kind().save(str(folder / "tokenizer.json"))
        spec = TokenizerSpec(
            kind="tokenizers",
            pad_token_id=0,
            bos_token_id=0,
            eos_token_id=END,
            files={"tokenizer": "tokenizer.json"},
        )
        self.tokenizer = FastTokenizer(spec, folder)
        fields = {"generation": GREEDY, "tokenizer": spec, "limits": Limits()}
        described = [manifest("generate", **fields), manifest("chat", SECTION, **fields)]
        self.gateway: Gateway = make([served(one, self.tokenizer) for one in described])
        self.gateway.inference._generated = self._generated
        self.ids: list[int] = []
        self.top: Top = ()

    def _generated(self, call: GenerateCall) -> Finished:
        ids = call.options.given_ids or self.ids
        scores = tuple(-0.5 - place for place in range(len(ids)))
        return finished(
            (ids,), (-1.0,), ("stop",), 2, log_probs=(scores,), top=((self.top,) * len(ids),)
        )

    def write(self, text: str) -> None:
        """Have a text, and its end, as the answer."""
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        self.ids = [*ids, END]

    async def post(self, path: str, **body: Any) -> Any:
        response = await self.gateway.post(path, json=body)
        return response.json()

    async def events(self, path: str, **body: Any) -> list[Any]:
        response = await self.gateway.post(path, json={**body, "stream": True})
        lines = [line[5:] for line in response.text.split("\n") if line.startswith("data:")]
        return [json.loads(line) for line in lines if "[DONE]" not in line]


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def writing(make_gateway: MakeGateway, request: pytest.FixtureRequest, tmp_path: Path) -> Writing:
    return Writing(make_gateway, request.param, tmp_path)


@pytest.fixture
def of_bytes(make_gateway: MakeGateway, tmp_path: Path) -> Writing:
    return Writing(make_gateway, byte_level, tmp_path)


CHAT_OF_BYTES = {
    "model": "tiny-chat",
    "messages": [{"role": "user", "content": "x"}],
    "logprobs": True,
}


async def chat_logprobs(writing: Writing, *, stream: bool, **body: Any) -> tuple[str, list[Any]]:
    """The answer's text, and its log-probabilities."""
    path = "/v1/chat/completions"
    if not stream:
        (choice,) = (await writing.post(path, **CHAT_OF_BYTES, **body))["choices"]
        return choice["message"]["content"], choice["logprobs"]["content"]
    choices = [event["choices"][0] for event in await writing.events(path, **CHAT_OF_BYTES, **body)]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    return text, [
        one for each in choices if each["logprobs"] for one in each["logprobs"]["content"]
    ]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("text", TEXTS)
async def test_bytes_of_chat_are_those_of_the_text(
    writing: Writing, text: str, *, stream: bool
) -> None:
    writing.write(text)
    written, content = await chat_logprobs(writing, stream=stream)
    joined = bytes(byte for one in content for byte in one["bytes"]).decode()
    assert written in (joined, joined.removeprefix(" "))  # sentencepiece's first space
    assert content[-1]["token"] == "</s>"
    assert content[-1]["bytes"] == []


@pytest.mark.parametrize("stream", [False, True])
async def test_bytes_of_alternatives_are_their_own(writing: Writing, *, stream: bool) -> None:
    (*_, first, second) = writing.tokenizer.encode("😀", add_special_tokens=False)
    writing.write("a")
    writing.top = ((first, -0.1), (second, -0.2), (END, -0.3))
    _, content = await chat_logprobs(writing, stream=stream, top_logprobs=3)
    for one in content:
        found = [(top["token"], top["bytes"]) for top in one["top_logprobs"]]
        assert found == [(r"\x98", [0x98]), (r"\x80", [0x80]), ("</s>", [])]


async def completion(writing: Writing, **body: Any) -> tuple[str, Any]:
    answer = await writing.post("/v1/completions", model=MODEL, **body)
    (choice,) = answer["choices"]
    return choice["text"], choice["logprobs"]


async def streamed_completion(writing: Writing, **body: Any) -> tuple[str, Any]:
    events = await writing.events("/v1/completions", model=MODEL, **body)
    choices = [event["choices"][0] for event in events]
    found: dict[str, list[Any]] = {}
    for logprobs in (choice["logprobs"] for choice in choices if choice["logprobs"]):
        for name, values in logprobs.items():
            found[name] = found.get(name, []) + (values or [])
    return "".join(choice["text"] for choice in choices), found


def places(writing: Writing, ids: list[int], text: str) -> list[int]:
    """Where the character begins that each token's first byte is of."""
    parts = writing.tokenizer.bytes_of(ids)
    whole = b"".join(parts)
    dropped = len(whole.decode(errors="replace")) - len(text)
    found, place = [], 0
    for part in parts:
        before = whole[: place + len(part[:1])].decode(errors="replace")
        found.append(max(0, len(before) - dropped - bool(part)))
        place += len(part)
    return found


@pytest.mark.parametrize("read", [completion, streamed_completion])
@pytest.mark.parametrize("text", TEXTS)
async def test_offsets_index_the_text(
    writing: Writing, text: str, read: Callable[..., Any]
) -> None:
    writing.write(text)
    written, logprobs = await read(writing, prompt="x", logprobs=1)
    assert logprobs["text_offset"] == places(writing, writing.ids, written)
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        if not token.startswith(("bytes:", "<", " ")):
            assert written[offset : offset + len(token)] == token


@pytest.mark.parametrize("read", [completion, streamed_completion])
async def test_offsets_index_a_text_of_any_bytes(
    of_bytes: Writing, read: Callable[..., Any]
) -> None:
    drawn = random.Random(7)
    for _ in range(30):
        of_bytes.ids = [drawn.randrange(2, 300) for _ in range(drawn.randrange(1, 12))]
        written, logprobs = await read(of_bytes, prompt="x", logprobs=1)
        assert logprobs["text_offset"] == places(of_bytes, of_bytes.ids, written)


@pytest.mark.parametrize("text", [*TEXTS, "  two  spaces ", "</s>😀a", "x <s> y"])
async def test_offsets_of_an_echo_index_the_text(writing: Writing, text: str) -> None:
    writing.write("é c")
    echoed, logprobs = await completion(writing, prompt=text, echo=True, logprobs=1)
    assert echoed.startswith(text)
    prompt = writing.tokenizer.encode(text)
    offsets = logprobs["text_offset"]
    # Sentencepiece puts a space there, which the text does not have.
    begins = {0, len(text), *(found.end() for found in re.finditer("</?s>", text))}
    assert len(offsets) == len(prompt) + len(writing.ids)
    assert offsets[len(prompt)] == len(text)
    assert offsets == sorted(offsets)
    for token, offset in zip(logprobs["tokens"], offsets, strict=True):
        name = token.lstrip() if offset in begins else token
        if not token.startswith("bytes:") and token not in ("<s>", "</s>"):
            assert echoed[offset : offset + len(name)] == name
    parts = [
        place for token, place in zip(logprobs["tokens"], offsets, strict=True) if "bytes:" in token
    ]
    assert all(ord(echoed[place]) > 127 for place in parts)


async def test_equal_names_do_not_hide_alternatives(writing: Writing) -> None:
    """Five are asked, five are given, also where tokens are parts of characters."""
    ids = writing.tokenizer.encode("😀é", add_special_tokens=False)
    writing.top = tuple((number, -0.1 * place) for place, number in enumerate(ids[-5:]))
    writing.write("a")
    for read in (completion, streamed_completion):
        _, logprobs = await read(writing, prompt="x", logprobs=5)
        for found in logprobs["top_logprobs"]:
            assert list(found.values()) == [score for _, score in writing.top]
            assert r"bytes:\x80" in found


async def test_tokens_of_equal_texts_are_told_apart_by_their_ids(
    make_gateway: MakeGateway, tmp_path: Path
) -> None:
    writing = Writing(make_gateway, byte_fallback, tmp_path)
    plain, byte = (writing.tokenizer.token_id(name) for name in ("a", "<0x61>"))
    assert writing.tokenizer.bytes_of([plain, byte]) == [b"a", b"a"]
    writing.top = ((byte, -0.1), (plain, -0.2), (END, -3.0))
    for chosen, names in (
        (plain, [f"token_id:{byte}", "a", "</s>"]),
        (byte, ["a", f"token_id:{plain}", "</s>"]),
        (END, ["a", f"token_id:{plain}", "</s>"]),
    ):
        writing.ids = [chosen]
        _, logprobs = await completion(writing, prompt="x", logprobs=3)
        assert list(logprobs["top_logprobs"][0]) == names


async def test_native_tokens_have_their_bytes_and_places(of_bytes: Writing) -> None:
    of_bytes.write("a😀b")
    body = {"prompts": "é", "logprobs": 1, "model": MODEL}
    (whole,) = (await of_bytes.post("/v1/generate", **body))["data"]
    events = await of_bytes.events("/v1/generate", **body)
    streamed = [one for event in events for one in event.get("logprobs") or ()]
    assert streamed == whole["logprobs"]
    assert bytes(byte for one in streamed for byte in one["bytes"]).decode() == "a😀b"
    assert [one["text_offset"] for one in streamed] == [0, 1, 1, 1, 1, 2, 3]
    (echoed,) = (await of_bytes.post("/v1/generate", **body, echo=True))["data"]
    tokens = echoed["prompt_logprobs"] + echoed["logprobs"]
    assert bytes(byte for one in tokens for byte in one["bytes"]).decode() == echoed["text"]
    assert [one["token_id"] for one in tokens] == [*of_bytes.tokenizer.encode("é"), *of_bytes.ids]


async def test_texts_of_tgi_are_parts_of_the_text(writing: Writing) -> None:
    writing.write("b😀é")
    body = {"inputs": "x", "parameters": {"details": True}}
    (whole,) = await writing.post(f"/hf/generate/{MODEL}", **body)
    events = await writing.events(f"/hf/generate/{MODEL}", **body)
    for tokens in (whole["details"]["tokens"], [event["token"] for event in events]):
        joined = "".join(token["text"] for token in tokens if not token["special"])
        assert joined.removeprefix(" ").removesuffix("</s>") == whole["generated_text"]
        assert [token["id"] for token in tokens] == writing.ids
