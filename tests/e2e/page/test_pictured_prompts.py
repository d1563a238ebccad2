"""Prompts with pictures in the generate panel, with a small random Idefics of `transformers`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Stack, running
from tests.e2e.interleaved import NEW_TOKENS, REPOSITORY, Original
from tests.e2e.page.conftest import OpenPage
from tests.e2e.page.screen import Screen

pytestmark = pytest.mark.integration

PICTURES = Path(__file__).parents[3] / "examples" / "demo" / "pictures"
FIRST, SECOND, THIRD = "scene-1.png", "scene-2.png", "scene-3.png"
PHONE = (360, 740)


@pytest.fixture(scope="module")
def original(interleaved: Path) -> Original:
    return Original.read(interleaved)


@pytest.fixture(scope="module")
def served(interleaved: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(interleaved / REPOSITORY, tmp_path_factory.mktemp("pictured")) as stack:
        yield stack


def open_empty(open_page: OpenPage, served: Stack, **options: object) -> Screen:
    """The panel with an empty prompt, deterministic and short."""
    screen = open_page("generate", url=served.url, **options)
    screen.panel.locator(".chosen.numbered img").first.wait_for()  # the example at first
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


def wanted(original: Original, prompt: str, *names: str) -> str:
    return original.outputs(prompt, [(PICTURES / name).read_bytes() for name in names])[0]


def generated(screen: Screen) -> str:
    return str(screen.answer.locator(".streamed").text_content())


def test_pictures_stand_where_the_caret_was(
    open_page: OpenPage, served: Stack, original: Original, tmp_path: Path
) -> None:
    screen = open_empty(open_page, served)
    screen.field("Prompt").fill("w3 w4 w5")
    caret(screen, 3)
    choose(screen, FIRST)
    caret(screen, 1)
    screen.give("drop", SECOND, scene=SECOND)
    caret(screen, len("w<image>3 <ima"))  # inside of a place: behind it
    screen.give("paste", THIRD, scene=THIRD)
    prompt = "w<image>3 <image><image>w4 w5"
    screen.panel.get_by_label("Remove picture 3").wait_for()
    assert screen.field("Prompt").input_value() == prompt
    assert chosen(screen) == [SECOND, FIRST, THIRD]
    screen.run()
    text = wanted(original, prompt, SECOND, FIRST, THIRD)
    assert generated(screen) == text
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
    open_page: OpenPage, served: Stack
) -> None:
    screen = open_empty(open_page, served)
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


def test_examples_have_pictures_and_answers(
    open_page: OpenPage, served: Stack, original: Original
) -> None:
    screen = open_empty(open_page, served)
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
    text = wanted(original, "<image> => w5\n<image> w7 => w8\n<image> =>", SECOND, THIRD, FIRST)
    assert generated(screen).strip() == text.split("\n")[0].strip()
    screen.press(f"Remove picture of example 2, {THIRD}")
    assert screen.field("input of example 2").input_value() == "w7"
    screen.field("input of example 1").fill("w9")
    screen.press("Generate")
    assert "Example 1 has no <image> places and 1 picture" in screen.problem()


def test_pictures_are_added_and_removed_with_the_keyboard(
    open_page: OpenPage, served: Stack
) -> None:
    screen = open_empty(open_page, served)
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


def test_a_phone_shows_pictured_examples_without_scrolling_sideways(
    open_page: OpenPage, served: Stack
) -> None:
    screen = open_empty(open_page, served, size=PHONE)
    screen.example("A picture after two examples")
    assert screen.field("input of example 1").input_value() == "<image>"
    assert screen.width() == PHONE[0]
    small = """() => [...document.querySelectorAll(".ask button, .ask input")]
        .filter((e) => e.getClientRects().length && e.getBoundingClientRect().height < 24
                && !["range", "checkbox"].includes(e.type))
        .map((e) => e.outerHTML)"""
    assert screen.page.evaluate(small) == []
