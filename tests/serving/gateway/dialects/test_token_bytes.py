"""What clients are told about tokens: of their ids, also where a token is a part of a character."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, processors, trainers

from inference.bundle.inputs import TokenizerSpec
from inference.bundle.manifest import Limits
from inference.processing.text import FastTokenizer
from inference.sequences import Finished, Top
from inference.tasks.shared.model_calls import GenerateCall
from tests.inference.processing.tokenizer_files import byte_pairs
from tests.inference.tiny_models import finished, manifest, served
from tests.serving.gateway.conftest import GREEDY, Gateway, MakeGateway
from tests.tasks.models import CHAT as SECTION

LINES = ["the world is not enough", "three big dogs run along the old street"]
END = 1
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
        response = await self.gateway.http.post(path, json=body)
        assert response.status_code == 200, response.text
        return response.json()

    async def events(self, path: str, **body: Any) -> list[Any]:
        response = await self.gateway.http.post(path, json={**body, "stream": True})
        assert response.status_code == 200, response.text
        lines = [line[5:] for line in response.text.split("\n") if line.startswith("data:")]
        return [json.loads(line) for line in lines if "[DONE]" not in line]


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def writing(make_gateway: MakeGateway, request: pytest.FixtureRequest, tmp_path: Path) -> Writing:
    return Writing(make_gateway, request.param, tmp_path)


@pytest.fixture
def of_bytes(make_gateway: MakeGateway, tmp_path: Path) -> Writing:
    return Writing(make_gateway, byte_level, tmp_path)


CHAT = {"model": "tiny-chat", "messages": [{"role": "user", "content": "x"}], "logprobs": True}


async def chat_logprobs(writing: Writing, *, stream: bool, **body: Any) -> tuple[str, list[Any]]:
    """The answer's text, and its log-probabilities."""
    path = "/v1/chat/completions"
    if not stream:
        (choice,) = (await writing.post(path, **CHAT, **body))["choices"]
        return choice["message"]["content"], choice["logprobs"]["content"]
    choices = [event["choices"][0] for event in await writing.events(path, **CHAT, **body)]
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
