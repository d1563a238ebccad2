"""Generation through the real stack, also within choices, expressions and schemas."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import jsonschema_rs
import pytest
import torch
from PIL import Image
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers.modeling_utils import PreTrainedModel

from examples.history.task_requests import as_png
from examples.scenes.scores import heldout_pictures
from examples.texts.grammar import ENGLISH, SPANISH, sentences
from tests.e2e.conftest import CHECKPOINTS, Stack
from triptych import AsyncClient, Client
from triptych.cli import run as triptych
from triptych.client.grpc_client import GrpcClient
from triptych.errors import InvalidArgument, TriptychError
from triptych.messages import Chunk, Generation, TokenLogprob

NAME = "example-gpt"
FOLDER = CHECKPOINTS / NAME
PROMPTS = ["the world is", "this restaurant has", "a big red stack", "where is the"]
pytestmark = pytest.mark.integration
SAMPLING = {"temperature": 0.9, "top_p": 0.95, "seed": 11, "max_new_tokens": 16}


@pytest.fixture(scope="module")
def oracle() -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(FOLDER)


def continued(
    oracle: tuple[PreTrainedModel, PreTrainedTokenizerFast], prompt: str, **rules: object
) -> str:
    model, tokenizer = oracle
    inputs = tokenizer(prompt, return_tensors="pt")
    with torch.no_grad():
        found = model.generate(
            **{name: inputs[name] for name in ("input_ids", "attention_mask")},
            do_sample=False,
            pad_token_id=model.generation_config.pad_token_id or 0,
            **rules,
        )
    return str(tokenizer.decode(found[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))


def total(entries: list[TokenLogprob] | None) -> float:
    assert entries
    return sum(entry.logprob for entry in entries)


@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"num_beams": 4},
        {"num_beams": 3, "length_penalty": 2.0, "early_stopping": True},
        {"no_repeat_ngram_size": 2},
        {"repetition_penalty": 1.5},
    ],
    ids=str,
)
def test_continuations_are_those_of_transformers(
    client: Client, oracle: tuple[PreTrainedModel, PreTrainedTokenizerFast], rules: dict
) -> None:
    answer = client.generate(PROMPTS, model=NAME, max_new_tokens=16, **rules)
    expected = [continued(oracle, prompt, max_new_tokens=16, **rules) for prompt in PROMPTS]
    assert [item.text for item in answer.data] == expected


def test_streams_are_the_whole_answers(client: Client, grpc_client: GrpcClient) -> None:
    for fields in ({"max_new_tokens": 24}, SAMPLING):
        whole = client.generate(PROMPTS, model=NAME, **fields)
        pieces = list(client.generate_stream(PROMPTS, model=NAME, **fields))
        assert texts(pieces) == [item.text for item in whole.data]
        assert pieces[-1].usage == whole.usage
        assert texts(list(grpc_client.generate_stream(PROMPTS, model=NAME, **fields))) == texts(
            pieces
        )


def test_a_seed_gives_the_same_samples_in_any_batch(client: Client) -> None:
    together = [item.text for item in client.generate(PROMPTS, model=NAME, **SAMPLING).data]
    alone = [client.generate(prompt, model=NAME, **SAMPLING).data[0].text for prompt in PROMPTS]
    assert alone == together
    others = client.generate(PROMPTS, model=NAME, **{**SAMPLING, "seed": 12}).data
    assert [item.text for item in others] != together


def test_a_stop_string_cuts_the_whole_answer(client: Client) -> None:
    for prompt in PROMPTS:
        whole = client.generate(prompt, model=NAME, max_new_tokens=24, logprobs=0)
        text = whole.data[0].text or ""
        for stop in {text[2:4], text[5:8], text[-3:-1]} - {""}:
            cut = client.generate(prompt, model=NAME, max_new_tokens=24, stop=stop, logprobs=0)
            item = cut.data[0]
            assert item.text == text[: text.find(stop)]
            assert item.finish_reason == "stop"
            assert cut.usage.completion_tokens <= whole.usage.completion_tokens
            assert item.logprobs == (whole.data[0].logprobs or [])[: len(item.logprobs or [])]
            pieces = list(client.generate_stream(prompt, model=NAME, max_new_tokens=24, stop=stop))
            assert texts(pieces) == [item.text]
            assert pieces[-1].usage == cut.usage


def test_scores_are_made_of_the_tokens_log_probabilities(client: Client) -> None:
    (item,) = client.generate(PROMPTS[0], model=NAME, max_new_tokens=12, logprobs=3).data
    assert item.score == pytest.approx(total(item.logprobs) / len(item.logprobs), abs=1e-4)
    for entry in item.logprobs:
        assert len(entry.top) == 3
        assert entry.top[0].token == entry.token  # greedy
        assert [t.logprob for t in entry.top] == sorted(
            (t.logprob for t in entry.top), reverse=True
        )


def test_several_answers_come_best_first(client: Client) -> None:
    for fields in ({"num_beams": 4, "n": 3}, {"n": 3, "best_of": 6, **SAMPLING}):
        (item,) = client.generate(PROMPTS[0], model=NAME, **fields).data
        scores = [answer.score for answer in item.alternatives]
        assert len(scores) == 3
        assert scores == sorted(scores, reverse=True)
        assert item.text == item.alternatives[0].text


def test_examples_are_laid_out_and_a_line_ends_the_answer(client: Client) -> None:
    shots = [("sun", "moon"), ("red", "blue")]
    asked = {"model": NAME, "max_new_tokens": 12}
    laid_out = client.generate("big", instruction="Map:", examples=shots, **asked).data[0]
    by_hand = client.generate("Map:\n\nsun => moon\nred => blue\nbig =>", stop="\n", **asked).data[
        0
    ]
    assert laid_out.text == (by_hand.text or "").removeprefix(" ")
    assert "\n" not in (laid_out.text or "")


def test_grpc_gives_what_http_gives(client: Client, grpc_client: GrpcClient) -> None:
    fields = {"model": NAME, "logprobs": 1, "n": 2, **SAMPLING}
    one, other = (c.generate(PROMPTS, **fields).data for c in (client, grpc_client))
    assert [comparable(item) for item in one] == [comparable(item) for item in other]


def comparable(item: Generation) -> tuple[str | None, str | None, float]:
    return item.text, item.finish_reason, round(item.score or 0.0, 5)


MODEL = {"model": "example-gpt"}
SCHEMA = {
    "type": "object",
    "properties": {
        "colour": {"enum": ["red", "green", "blue"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "size": {"type": "string", "maxLength": 12},
    },
    "required": ["colour", "count"],
    "additionalProperties": False,
}
SHOTS = [("cat", "animal"), ("bread", "food"), ("dog", "animal"), ("cheese", "food")]


def test_outputs_are_valid_however_they_are_drawn(client: Client) -> None:
    prompts = [f"The {word} circle" for word in ("red", "small", "large", "blue")]
    for fields in ({}, {"temperature": 1.5, "seed": 3}, {"n": 3, "temperature": 2.0, "seed": 1}):
        answer = client.generate(prompts, json_schema=SCHEMA, max_new_tokens=120, **fields, **MODEL)
        for item in answer.data:
            for output in item.alternatives or [item]:
                assert output.is_incomplete == (output.finish_reason == "length")
                if not output.is_incomplete:
                    assert jsonschema_rs.is_valid(SCHEMA, json.loads(output.text))
        assert any(not item.is_incomplete for item in answer.data)


def test_a_short_limit_says_that_the_output_is_incomplete(client: Client) -> None:
    (item,) = client.generate("x", json_schema=SCHEMA, max_new_tokens=3, **MODEL).data
    assert (item.finish_reason, item.is_incomplete) == ("length", True)
    (item,) = client.generate("x", max_new_tokens=3, **MODEL).data
    assert item.is_incomplete is None


def test_few_shot_answers_are_among_the_choices(client: Client) -> None:
    """The layout's space in front is allowed, so that the model's own tokens fit."""
    words = ["fish", "horse", "rice", "bird", "meat", "cow"]
    answer = client.generate(words, examples=SHOTS, choices=["animal", "food"], **MODEL)
    found = {word: item.text for word, item in zip(words, answer.data, strict=True)}
    assert set(found.values()) <= {"animal", "food"}
    assert found["horse"] == "animal"
    assert found["rice"] == "food"


def test_streams_carry_the_same_text(client: Client, grpc_client: GrpcClient) -> None:
    fields = {"regex": r"\d{3}-\d{4}", "temperature": 1.0, "seed": 4, **MODEL}
    (item,) = client.generate("Call ", **fields).data
    assert re.fullmatch(r"\d{3}-\d{4}", item.text)
    for each in (client, grpc_client):
        chunks = list(each.generate_stream("Call ", **fields))
        assert "".join(chunk.text for chunk in chunks) == item.text
        assert chunks[-1].finish_reason == "stop"
    assert grpc_client.generate("Call ", **fields).data == [item]


def test_the_command_takes_them(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["generate", "x", "--model", "example-gpt", "--url", stack.url]
    assert triptych([*common, "--choice", "yes", "--choice", "no"]) == 0
    assert capsys.readouterr().out.strip() in ("yes", "no")
    assert triptych([*common, "--json-schema", '{"enum": [7]}']) == 0
    assert capsys.readouterr().out.strip() == "7"


def test_requests_beside_are_not_changed(client: Client) -> None:
    prompts = [f"The {word} ring" for word in ("red", "small", "large", "blue", "white", "old")]

    def ask(number: int) -> str | None:
        fields = {"json_schema": SCHEMA} if number % 2 else {"max_new_tokens": 24}
        return client.generate(prompts[number // 2], **fields, **MODEL).data[0].text

    alone = [ask(2 * place) for place in range(len(prompts))]

    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(ask, range(12)))
    assert found[::2] == alone


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"regex": "("}, "regex is refused"),
        ({"json_schema": {"$ref": "http://169.254.169.254/"}}, "json_schema is refused"),
        ({"json_schema": {"not": {}}}, "json_schema is refused"),
        ({"json_schema": "{"}, "json_schema is not JSON"),
        ({"regex": "a", "num_beams": 4}, "excludes beams"),
        ({"regex": "a", "stop": "b"}, "leave stop out"),
    ],
)
def test_what_cannot_be_is_refused(client: Client, fields: dict[str, object], message: str) -> None:
    with pytest.raises(TriptychError, match=message) as caught:
        client.generate("x", **fields, **MODEL)
    assert not isinstance(caught.value, InvalidArgument)


FROM_SPANISH = {"model": "example-es-en"}
CAPTIONER = {"model": "example-captioner"}


@pytest.fixture(scope="module")
def spanish() -> list[str]:
    return [pair.spanish for pair in sentences("compositional", 32, seed=5)]


@pytest.fixture(scope="module")
def pictures() -> list[Image.Image]:
    return [picture for _, picture in heldout_pictures(6, seed=5)]


def texts(pieces: list[Chunk]) -> list[str]:
    """Each item's text, in the order asked; nothing follows an item's last piece."""
    found: dict[int, str] = {}
    ended: set[int] = set()
    for piece in pieces:
        assert piece.index not in ended
        assert piece.error is None
        found[piece.index] = found.get(piece.index, "") + piece.text
        if piece.finish_reason:
            ended.add(piece.index)
    assert ended == set(found)
    return [found[index] for index in sorted(found)]


def test_streamed_translations_are_the_whole_ones(
    client: Client, grpc_client: GrpcClient, spanish: list[str]
) -> None:
    whole = client.translate(spanish, num_beams=1, **FROM_SPANISH)
    pieces = list(client.translate_stream(spanish, **FROM_SPANISH))
    assert texts(pieces) == [item.text for item in whole.data]
    assert pieces[-1].usage == whole.usage
    assert texts(list(grpc_client.translate_stream(spanish, **FROM_SPANISH))) == texts(pieces)


def test_a_stream_of_a_model_with_beams_is_greedy_everywhere(
    stack: Stack, client: Client, grpc_client: GrpcClient, spanish: list[str]
) -> None:
    """A raw request, the clients and the command send the same and read the same."""
    text = spanish[0]
    greedy = client.translate(text, num_beams=1, **FROM_SPANISH).data[0].text
    body = {"texts": text, "stream": True, **FROM_SPANISH}
    raw = httpx.post(f"{stack.url}/v1/translate", json=body, timeout=30).text.split("\n\n")
    command = [
        *(str(Path(sys.executable).with_name("triptych")), "translate", text, "--stream"),
        *("--json", "--url", stack.url, "--model", FROM_SPANISH["model"]),
    ]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    streams = [
        [Chunk.model_validate_json(event.removeprefix("data: ")) for event in raw[:-2]],
        list(client.translate_stream(text, **FROM_SPANISH)),
        list(grpc_client.translate_stream(text, **FROM_SPANISH)),
        [Chunk.model_validate_json(line) for line in printed.stdout.splitlines()],
    ]
    for chunks in streams:
        assert "".join(chunk.text for chunk in chunks) == greedy
        *others, last = chunks
        assert last.is_greedy
        assert all(chunk.is_greedy is None for chunk in others)


def test_streamed_captions_are_the_whole_ones(
    client: Client, grpc_client: GrpcClient, pictures: list[Image.Image]
) -> None:
    files = [as_png(picture) for picture in pictures]
    whole = [item.text for item in client.caption(files, num_beams=1, **CAPTIONER).data]
    assert texts(list(client.caption_stream(files, **CAPTIONER))) == whole
    assert texts(list(grpc_client.caption_stream(files, **CAPTIONER))) == whole


def test_a_stream_does_not_depend_on_who_streams_beside_it(
    client: Client, spanish: list[str]
) -> None:
    whole = [item.text for item in client.translate(spanish, num_beams=1, **FROM_SPANISH).data]
    with ThreadPoolExecutor(16) as pool:
        alone = pool.map(
            lambda text: texts(list(client.translate_stream(text, **FROM_SPANISH))), spanish
        )
    assert [text for (text,) in alone] == whole


def test_a_paragraph_streams_with_its_line_breaks(client: Client) -> None:
    greedy = client.translate(SPANISH, num_beams=1, **FROM_SPANISH).data[0].text
    pieces = list(client.translate_stream(SPANISH, **FROM_SPANISH))
    assert texts(pieces) == [greedy] == [ENGLISH]
    assert len(pieces) > 3  # it came in pieces


async def test_async_streams_run_side_by_side(stack: Stack, spanish: list[str]) -> None:
    async with AsyncClient(stack.url) as client:
        whole = [
            item.text
            for item in (await client.translate(spanish[:2], num_beams=1, **FROM_SPANISH)).data
        ]
        first, second = (client.translate_stream(text, **FROM_SPANISH) for text in spanish[:2])
        began = [await anext(first), await anext(second)]
        for piece, stream in zip(began, (first, second), strict=True):
            rest = [piece, *[piece async for piece in stream]]
            assert texts(rest)[0] == whole.pop(0)
