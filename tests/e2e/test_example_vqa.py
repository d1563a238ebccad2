"""The example for questions about pictures: every protocol answers as `transformers` does."""

from __future__ import annotations

import base64
from itertools import islice

import httpx
import numpy as np
import openai
import pytest
from transformers import LlavaProcessor

from examples.history.task_requests import as_png
from examples.scenes.scores import heldout_pictures
from examples.vqa.questions import draw_questions
from examples.vqa.scores import MAX_ANSWER, answerer, lay_out
from tests.e2e.conftest import CHECKPOINTS, Stack
from triptych import Client
from triptych.client.grpc_client import GrpcClient

pytestmark = pytest.mark.integration

NAME = "example-vqa"
Asked = list[tuple[bytes, str, str]]
"""A picture, a question and the answer of `transformers`."""


@pytest.fixture(scope="module")
def asked() -> Asked:
    rng = np.random.default_rng(2)
    pictures = [
        (picture, question.text)
        for scene, picture in heldout_pictures(6, seed=9)
        for question in islice(draw_questions(scene, rng), 3)
    ]
    answers = answerer(CHECKPOINTS / NAME)(pictures)
    return [(as_png(p), text, one) for (p, text), one in zip(pictures, answers, strict=True)]


def messages(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"<image>{question}"}]


def test_answers_are_those_of_transformers(
    client: Client, grpc_client: GrpcClient, asked: Asked
) -> None:
    assert len({answer for _, _, answer in asked}) > 6
    for picture, question, answer in asked:
        # Of two models that chat, the one that reads images.
        found = client.chat(messages(question), images=[picture])
        assert (found.model, found.data[0].text) == (NAME, answer)
        parts = grpc_client.chat_stream(messages(question), images=[picture], model=NAME)
        assert "".join(part.text for part in parts) == answer


def test_openais_client_asks_about_a_picture_and_asks_again(stack: Stack, asked: Asked) -> None:
    (picture, first, answer), (_, second, _) = asked[0], asked[1]
    url = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
    content = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": first},
    ]
    turns = [{"role": "user", "content": content}]
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0) as api:
        done = api.chat.completions.create(model=NAME, messages=turns)
        assert done.choices[0].message.content == answer
        turns += [
            {"role": "assistant", "content": answer},
            {"role": "user", "content": second},
        ]
        again = api.chat.completions.create(model=NAME, messages=turns)
    native = [
        {"role": "user", "content": f"<image>{first}"},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": second},
    ]
    with Client(stack.url, timeout=60) as client:
        expected = client.chat(native, images=[picture], model=NAME).data[0].text
    assert again.choices[0].message.content == expected


def test_prompts_with_pictures_continue_as_in_transformers(
    client: Client, grpc_client: GrpcClient, stack: Stack, asked: Asked
) -> None:
    """All protocols, several prompts in one request, as the model's template lays them out."""
    processor = LlavaProcessor.from_pretrained(CHECKPOINTS / NAME)
    prompts = [lay_out(question, processor) for _, question, _ in asked]
    pictures, wanted = [one for one, _, _ in asked], [answer for _, _, answer in asked]
    options = {"model": NAME, "max_new_tokens": MAX_ANSWER, "stop": "\n\n"}
    for each in (client, grpc_client):
        found = each.generate(prompts, images=pictures, **options)
        assert [item.text for item in found.data] == wanted
    files = [("images", ("a.png", picture, "image/png")) for picture in pictures]
    form = {"prompts": prompts, **options}
    posted = httpx.post(f"{stack.url}/v1/generate", data=form, files=files, timeout=60)
    assert [item["text"] for item in posted.json()["data"]] == wanted


def test_wrong_pictures_are_refused_in_words(stack: Stack, asked: Asked) -> None:
    text = base64.b64encode(asked[0][0]).decode()
    for prompts, images, message in (
        ("<image>", None, "1 <image> places, images holds 0"),
        (["<image>", "a"], [text] * 2, "1 + 0 <image> places, images holds 2"),
    ):
        body = {"prompts": prompts, "model": NAME} | ({"images": images} if images else {})
        answer = httpx.post(f"{stack.url}/v1/generate", json=body)
        assert answer.status_code == 422
        assert message in answer.json()["error"]["message"]


def test_captions_follow_the_instruction(client: Client, asked: Asked) -> None:
    (caption,) = client.caption([asked[0][0]], model=NAME).data
    assert caption.text.startswith("a ")
    assert "background" in caption.text
