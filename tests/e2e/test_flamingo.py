"""`history-flamingo` served: few-shot prompts with images, as `transformers` answers them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.bundles import publish_example
from examples.demo.server import serving
from examples.history.flamingo.card import answerer
from examples.history.flamingo.scores import MAX_ANSWER, PictureQuestion, picture_questions
from examples.history.flamingo.train import OUTPUT
from examples.history.task_requests import as_png, as_pngs
from triptych import Client

pytestmark = [pytest.mark.integration, pytest.mark.full]
COUNT = 10


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    repository = tmp_path_factory.mktemp("flamingo") / "repository"
    publish_example(OUTPUT, repository)
    with serving(Path(repository)) as url, Client(url, timeout=60) as connected:
        yield connected


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
