"""Prompts with pictures in the generate panel, with the example that answers about pictures."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import Stack
from tests.e2e.page.conftest import OpenPage
from tests.e2e.page.screen import Screen
from triptych import Client

pytestmark = pytest.mark.integration

PICTURES = Path(__file__).parents[3] / "examples" / "demo" / "pictures"
FIRST, SECOND, THIRD = "scene-1.png", "scene-2.png", "scene-3.png"
PHONE = (360, 740)
MODEL = "example-vqa"
NEW_TOKENS = 8


def open_empty(open_page: OpenPage, **options: object) -> Screen:
    """The panel with an empty prompt, deterministic and short."""
    screen = open_page("generate", **options)
    screen.example("A picture to continue")
    assert screen.field("Model").input_value() == MODEL
    screen.panel.locator(".chosen.numbered img").first.wait_for()
    screen.press("Remove picture 1, scene-1.png")
    screen.panel.get_by_label("Temperature").fill("0")  # its label has the value too
    screen.field("Tokens at most").fill(str(NEW_TOKENS))
    assert screen.field("Prompt").input_value() == ""
    return screen


def choose(screen: Screen, *names: str) -> None:
    chooser = screen.panel.get_by_label("Choose pictures, drop or paste them here")
    chooser.set_input_files([str(PICTURES / name) for name in names])


def caret(screen: Screen, position: int) -> None:
    script = "(input, at) => input.setSelectionRange(at, at)"
    screen.field("Prompt").evaluate(script, position)


def chosen(screen: Screen) -> list[str]:
    images = screen.panel.locator(".ask .chosen img").all()
    return [str(image.get_attribute("alt")) for image in images]


def wanted(stack: Stack, prompt: str, *names: str) -> str:
    """What the client gets; `test_examples` compares it with `transformers`."""
    pictures = [PICTURES / name for name in names]
    options = {"model": MODEL, "temperature": 0, "max_new_tokens": NEW_TOKENS}
    with Client(stack.url) as client:
        return str(client.generate(prompt, images=pictures, **options).data[0].text)


def generated(screen: Screen) -> str:
    return str(screen.answer.locator(".streamed").text_content())


def test_pictures_stand_where_the_caret_was(
    open_page: OpenPage, stack: Stack, tmp_path: Path
) -> None:
    screen = open_empty(open_page)
    screen.field("Prompt").fill("what colour is it? a")
    caret(screen, len("what colour "))
    choose(screen, FIRST)
    caret(screen, len("what "))
    screen.give("drop", SECOND, scene=SECOND)
    caret(screen, len("what <image>colour <ima"))  # inside of a place: behind it
    screen.give("paste", THIRD, scene=THIRD)
    prompt = "what <image>colour <image><image>is it? a"
    screen.panel.get_by_label("Remove picture 3").wait_for()
    assert screen.field("Prompt").input_value() == prompt
    assert chosen(screen) == [SECOND, FIRST, THIRD]
    screen.run()
    text = wanted(stack, prompt, SECOND, FIRST, THIRD)
    assert generated(screen) == text != wanted(stack, prompt, FIRST, SECOND, THIRD)
    assert screen.answer.locator("img.inline-picture").count() == 3
    for name in chosen(screen):
        shutil.copy(PICTURES / name, tmp_path)
    commands = {"Python": [sys.executable, "-c"]} | (
        {"curl": ["bash", "-c"]} if shutil.which("curl") else {}
    )
    for language, command in commands.items():
        program = [*command, screen.code(language)]
        done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert (done.stdout == text) if language == "Python" else (text.split()[0] in done.stdout)


def test_places_and_pictures_that_differ_are_said_before_anything_is_sent(
    open_page: OpenPage,
) -> None:
    screen = open_empty(open_page)
    sent: list[str] = []
    screen.page.on("request", lambda request: sent.append(request.method))
    prompt = screen.field("Prompt")
    prompt.fill("<image> w3 <image>")
    words = "The prompt has 2 <image> places and no pictures: add pictures, or remove places."
    screen.panel.get_by_text(words).wait_for()
    screen.press("Generate")
    assert words in screen.problem()
    assert "POST" not in sent
    choose(screen, FIRST, SECOND)  # into the places that are there
    assert prompt.input_value() == "<image> w3 <image>"
    prompt.fill("w3 <image>")
    screen.press("Generate")
    assert "The prompt has 1 <image> place and 2 pictures" in screen.problem()
    screen.press("Insert <image>")
    assert prompt.input_value() == "w3 <image><image>"
    assert screen.active_name().startswith("Prompt")
    screen.press(f"Remove picture 1, {FIRST}")
    assert prompt.input_value() == "w3 <image>"
    screen.run()


def test_examples_have_pictures_and_answers(open_page: OpenPage) -> None:
    screen = open_empty(open_page)
    choose(screen, FIRST)
    screen.panel.get_by_text("Few-shot examples").click()
    screen.press("Add example")
    screen.field("Picture of example 1").set_input_files(str(PICTURES / SECOND))
    assert screen.field("input of example 1").input_value() == "<image>"
    screen.field("output of example 1").fill("w5")
    screen.press("Add example")
    screen.field("input of example 2").fill("w7")
    screen.field("output of example 2").fill("w8")
    screen.give("paste", THIRD, scene=THIRD, to="[aria-label='input of example 2']")
    screen.panel.get_by_label(f"Remove picture of example 2, {THIRD}").wait_for()
    assert screen.field("input of example 2").input_value() == "<image> w7"
    assert chosen(screen) == [FIRST]  # what was pasted in a row is the row's
    assert screen.panel.locator(".layout img").count() == 3
    screen.run()
    assert re.findall(r"images=@(\S+)", screen.code("curl")) == [SECOND, THIRD, FIRST]
    screen.press(f"Remove picture of example 2, {THIRD}")
    assert screen.field("input of example 2").input_value() == "w7"
    screen.field("input of example 1").fill("w9")
    screen.press("Generate")
    assert "Example 1 has no <image> places and 1 picture" in screen.problem()


def test_pictures_are_added_and_removed_with_the_keyboard(open_page: OpenPage) -> None:
    screen = open_empty(open_page)
    keyboard = screen.page.keyboard
    screen.field("Prompt").focus()
    for _ in range(3):
        keyboard.press("Tab")
    assert screen.active_name() == ""  # a thumbnail, whose image has the words
    keyboard.press("Enter")
    screen.panel.get_by_label("Remove picture 1").wait_for()
    keyboard.press("Shift+Tab")
    keyboard.press("Shift+Tab")
    keyboard.press("Shift+Tab")
    assert screen.active_name().startswith("Remove picture 1")
    keyboard.press("Enter")
    assert chosen(screen) == []
    assert screen.active_name().startswith("Choose pictures")
    nameless = """() => [...document.querySelectorAll("input, select, textarea, button")]
        .filter((e) => !e.labels?.length && !e.getAttribute("aria-label")
                && !e.textContent.trim() && !e.querySelector("img[alt]"))
        .map((e) => e.outerHTML)"""
    assert screen.page.evaluate(nameless) == []


def test_a_phone_shows_pictured_examples_without_scrolling_sideways(open_page: OpenPage) -> None:
    screen = open_empty(open_page, size=PHONE)
    screen.example("A picture after two examples")
    assert screen.field("input of example 1").input_value() == "<image>"
    assert screen.width() == PHONE[0]
    small = """() => [...document.querySelectorAll(".ask button, .ask input")]
        .filter((e) => e.getClientRects().length && e.getBoundingClientRect().height < 24
                && !["range", "checkbox"].includes(e.type))
        .map((e) => e.outerHTML)"""
    assert screen.page.evaluate(small) == []
