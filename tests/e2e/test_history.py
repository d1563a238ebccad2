"""The course's translators and Flamingo, served in one stack, answer as PyTorch does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.bundles import publish_example
from examples.demo.server import serving
from examples.en_fr.gazette import sentences
from examples.history.flamingo.card import answerer
from examples.history.flamingo.scores import MAX_ANSWER, PictureQuestion, picture_questions
from examples.history.flamingo.train import OUTPUT
from examples.history.gazette.card import translator
from examples.history.system import System
from examples.history.systems import writers
from examples.history.task_requests import as_png, as_pngs
from triptych import Client

pytestmark = [pytest.mark.integration, pytest.mark.full]
SYSTEMS = [one for one in writers.GAZETTE.systems if one.checkpoint.startswith("history-")]
COUNT = 10
"""Questions about pictures."""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    repository = tmp_path_factory.mktemp("history") / "repository"
    for folder in (*(system.folder for system in SYSTEMS), OUTPUT):
        publish_example(folder, repository)
    with serving(Path(repository)) as url, Client(url, timeout=60) as connected:
        yield connected


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("system", SYSTEMS, ids=[one.checkpoint for one in SYSTEMS])
def test_served_translations_are_pytorchs(client: Client, system: System, num_beams: int) -> None:
    texts = [pair.source for pair in sentences("compositional", 16, seed=5)]
    answer = client.translate(texts, model=system.checkpoint, num_beams=num_beams)
    assert [item.text for item in answer.data] == translator(system.folder, num_beams)(texts)


def served(client: Client, question: PictureQuestion) -> str:
    """The answer in the few-shot layout."""
    (item,) = client.generate(
        "<image>",
        examples=[("<image>", words) for words in question.shots],
        images=as_pngs(question.images),
        max_new_tokens=MAX_ANSWER,
    ).data
    return str(item.text)


@pytest.mark.parametrize("shots", [2, 4])
def test_words_of_the_prompt_name_its_last_picture(client: Client, shots: int) -> None:
    asked = picture_questions(shots, "held_out", COUNT, 11)
    answers = [served(client, question) for question in asked]
    assert answers == answerer(OUTPUT)(asked)
    right = sum(answer == one.answer for answer, one in zip(answers, asked, strict=True))
    assert right >= 0.6 * COUNT


def test_prompts_without_a_layout_share_a_request(client: Client) -> None:
    asked = picture_questions(2, "held_out", COUNT, 11)
    prompts = [" ".join(f"<image> {words}" for words in (*one.shots, "")).rstrip() for one in asked]
    images = [image for one in asked for image in as_pngs(one.images)]
    answer = client.generate(prompts, images=images, max_new_tokens=MAX_ANSWER)
    assert [str(item.text).strip() for item in answer.data] == [
        served(client, question) for question in asked
    ]


def test_captions_have_plain_words(client: Client) -> None:
    asked = picture_questions(0, None, COUNT, 11)
    answer = client.caption([as_png(one.images[-1]) for one in asked])
    captions = [str(item.text) for item in answer.data]
    assert captions == answerer(OUTPUT)(asked)
    assert sum(text == one.answer for text, one in zip(captions, asked, strict=True)) >= COUNT / 2
