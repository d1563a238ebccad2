"""Choices, expressions and schemas through the real stack, over every protocol."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor

import jsonschema_rs
import pytest

from tests.e2e.conftest import Stack
from triptych import Client
from triptych.cli import run as triptych
from triptych.client.grpc_client import GrpcClient
from triptych.errors import InvalidArgument, TriptychError

pytestmark = pytest.mark.integration

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
