"""The chat panel, with the examples that answer conversations."""

from __future__ import annotations

import pytest

from tests.e2e.page.conftest import OpenPage

pytestmark = pytest.mark.integration


def test_a_conversation_goes_on(open_page: OpenPage) -> None:
    screen = open_page("chat")
    sent: list[dict[str, list[dict[str, str]]]] = []
    screen.page.on(
        "request", lambda request: request.method == "POST" and sent.append(request.post_data_json)
    )
    screen.field("Tokens at most").fill("4")
    screen.field("Message").fill("one two")
    screen.run()
    assert screen.answer.locator(".turn.user p").all_inner_texts() == ["one two"]
    assert screen.field("Message").input_value() == ""
    screen.field("Message").fill("three")
    screen.run()
    assert [turn["role"] for turn in sent[-1]["messages"]] == ["user", "assistant", "user"]
    assert screen.answer.locator(".turn.user p").all_inner_texts() == ["one two", "three"]
    screen.press("Start over")
    screen.field("Message").fill("four")
    screen.run()
    assert [turn["content"] for turn in sent[-1]["messages"]] == ["four"]


@pytest.mark.parametrize(
    ("example", "shown", "answer"),
    [
        ("What was told before", [], "Your car is red."),
        ("Answers in Spanish", ["Answer in Spanish."], "Vives en Londres."),
        ("What was not told", [], "You have not told me."),
    ],
)
def test_examples_continue_a_conversation(
    open_page: OpenPage, example: str, shown: list[str], answer: str
) -> None:
    screen = open_page("chat")
    screen.example(example)
    assert screen.answer.locator(".turn.system p").all_inner_texts() == shown
    assert screen.answer.locator(".turn.user p").count() == 2
    assert answer in screen.answer.inner_text()
    assert "client.chat_stream(" in screen.code("Python")


def test_a_picture_stays_in_the_conversation(open_page: OpenPage) -> None:
    screen = open_page("chat")
    screen.example("A question about a picture")
    assert screen.answer.locator("img.inline-picture").count() == 1
    assert "yellow" in screen.answer.inner_text()
    assert 'images="scene-1.png"' in screen.code("Python")
    screen.field("Message").fill("What colour is the cross?")
    screen.run()
    assert screen.answer.locator("img.inline-picture").count() == 1
    assert "white" in screen.answer.locator(".streamed").inner_text()
    screen.field("Message").fill("<image>")
    screen.press("Send")
    assert "The message has 1 <image> place and no pictures" in screen.problem()
    screen.press("Start over")
    screen.field("Message").fill("Hello")
    screen.run()
    assert screen.answer.locator("img.inline-picture").count() == 0
