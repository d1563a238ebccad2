"""Generators over OpenVINO, served by a real Triton: answers and streams are `transformers`'."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from examples.chat.dialogues import Message, questions
from examples.chat.scores import Reply
from examples.gpt.scores import replier
from export.pipeline.cli import export as export_checkpoint
from export.precision import Runtime
from inference.bundle.reader import newest_bundle
from tests.e2e.conftest import CHECKPOINTS, Stack, running
from tests.e2e.workload import engine_stats
from tests.serving.triton.tiny import wait_until
from triptych import Client

pytestmark = pytest.mark.integration

NAME = "example-chat"
SMALL = {"TRIPTYCH_STATE_MEMORY": "1MiB"}
"""Room for few blocks, so that sequences are put back."""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("paged")
    repository = folder / "model_repository"
    export_checkpoint(str(CHECKPOINTS / NAME), repository=repository, runtime=Runtime.OPENVINO)
    with running(repository, folder, **SMALL) as started:
        yield started


@pytest.fixture(scope="module")
def conversations() -> list[Sequence[Message]]:
    return [one.messages for one in questions("compositional", 24, seed=5)]


@pytest.fixture(scope="module")
def expected(conversations: list[Sequence[Message]]) -> list[str]:
    original: Reply = replier(CHECKPOINTS / NAME)
    return original(conversations)


def test_concurrent_answers_are_those_of_transformers(
    client: Client, conversations: list[Sequence[Message]], expected: list[str]
) -> None:
    def ask(messages: Sequence[Message]) -> str:
        return str(client.chat(list(messages), model=NAME).data[0].text)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, conversations)) == expected


def test_streams_are_the_answers(
    client: Client, conversations: list[Sequence[Message]], expected: list[str]
) -> None:
    for messages, text in zip(conversations[:4], expected, strict=False):
        pieces = list(client.chat_stream(list(messages), model=NAME))
        assert "".join(piece.text for piece in pieces) == text


def test_sequences_without_memory_are_put_back_and_answered(client: Client, stack: Stack) -> None:
    generation = newest_bundle(stack.repository, NAME).manifest.generation
    endless = dict.fromkeys(generation.eos_token_ids, -100.0)
    prompts = [f"{count} red lamps" for count in range(24)]

    def ask(prompt: str) -> str:
        answer = client.generate(prompt, logit_bias=endless, max_new_tokens=80, model=NAME)
        assert answer.data[0].finish_reason == "length"
        return str(answer.data[0].text)

    alone = [ask(prompt) for prompt in prompts]

    def are_put_back() -> bool:
        """Asks all at once, and again where they arrived apart, so that memory sufficed."""
        with ThreadPoolExecutor(24) as pool:
            assert list(pool.map(ask, prompts)) == alone
        return engine_stats(stack, NAME).figures["put_back"] > 0

    wait_until(are_put_back)
    assert engine_stats(stack, NAME).figures["failures"] == 0
