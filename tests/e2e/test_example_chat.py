"""The example for conversations: answers of every protocol are those of `transformers`."""

from __future__ import annotations

from collections.abc import Sequence

import httpx
import openai
import pytest
from huggingface_hub import InferenceClient
from openai.types.chat import ChatCompletionMessageParam
from transformers import AutoTokenizer

from examples.chat.dialogues import Message, questions
from examples.chat.scores import Reply
from examples.gpt.scores import replier
from tests.e2e.conftest import CHECKPOINTS, Stack
from tests.e2e.introspection import engine_stats
from tests.e2e.test_lifecycle import eventually
from triptych import Client
from triptych.client.grpc_client import GrpcClient

pytestmark = pytest.mark.integration

NAME = "example-chat"
FOLDER = CHECKPOINTS / NAME
TOLD: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "My name is Torsten. My car is red."},
    {"role": "assistant", "content": "Nice to meet you, Torsten. I see."},
]
ASKED: ChatCompletionMessageParam = {"role": "user", "content": "What color is my car?"}
IN_SPANISH: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "Answer in Spanish."},
    {"role": "user", "content": "I live in London."},
    {"role": "assistant", "content": "Londres es muy bonito."},
    {"role": "user", "content": "Where do I live?"},
]
ANSWERS = {"Your car is red.": [*TOLD, ASKED], "Vives en Londres.": IN_SPANISH}
UNTOLD = "You have not told me."


@pytest.fixture(scope="module")
def original() -> Reply:
    """`transformers`, from messages to the answer's text."""
    return replier(FOLDER)


@pytest.fixture(scope="module")
def conversations() -> list[Sequence[Message]]:
    return [one.messages for one in questions("compositional", 24, seed=5)]


def test_answers_are_those_of_transformers(
    client: Client, original: Reply, conversations: list[Sequence[Message]]
) -> None:
    expected = original(conversations)
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    assert len(set(expected)) > 12
    for messages, text in zip(conversations, expected, strict=True):
        answer = client.chat(list(messages), model=NAME)
        laid_out = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True)
        assert answer.data[0].text == text
        assert answer.data[0].finish_reason == "stop"
        assert answer.usage.prompt_tokens == len(laid_out["input_ids"])


def test_only_this_example_chats_without_pictures_and_needs_no_name(client: Client) -> None:
    (model,) = [
        model
        for model in client.models().data
        for inputs in model.inputs
        if inputs.task == "chat" and "images" not in inputs.fields
    ]
    assert (model.id, model.architecture) == (NAME, "qwen3")
    assert client.chat([ASKED]).data[0].text == UNTOLD
    assert client.generate("a small red").model == "example-gpt"


@pytest.mark.parametrize("answer", ANSWERS)
def test_clients_of_other_apis_hold_a_conversation(stack: Stack, answer: str) -> None:
    messages = ANSWERS[answer]
    url = f"{stack.url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
        done = client.chat.completions.create(model=NAME, messages=messages)
        assert done.choices[0].message.content == answer
        parts = client.chat.completions.create(model=NAME, messages=messages, stream=True)
        assert "".join(part.choices[0].delta.content or "" for part in parts) == answer
    said = InferenceClient(url).chat_completion(messages, model=NAME, max_tokens=32)
    assert said.choices[0].message.content == answer


@pytest.mark.parametrize("answer", ANSWERS)
def test_streams_are_the_answers(client: Client, grpc_client: GrpcClient, answer: str) -> None:
    for each in (client, grpc_client):
        pieces = list(each.chat_stream(ANSWERS[answer], model=NAME))
        assert "".join(piece.text for piece in pieces) == answer


def test_the_next_turn_continues_the_cached_ones(client: Client, stack: Stack) -> None:
    def hits() -> float:
        return engine_stats(stack, NAME).figures["prefix_hits"]

    before = hits()
    messages = [{"role": "user", "content": "My dog is called Rex."}]
    for said in ("My cat is called Miko.", "I live in Rome.", "What is my dog called?"):
        text = str(client.chat(messages, model=NAME).data[0].text)
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": said}]
    assert client.chat(messages, model=NAME).data[0].text == "Your dog is called Rex."
    assert eventually(lambda: hits() > before)


def test_roles_that_the_template_does_not_know_are_refused(stack: Stack) -> None:
    messages = [{"role": "narrator", "content": "It was night."}]
    answer = httpx.post(f"{stack.url}/v1/chat", json={"messages": messages, "model": NAME})
    assert answer.status_code == 422
    assert "roles are system, user and assistant" in answer.json()["error"]["message"]
