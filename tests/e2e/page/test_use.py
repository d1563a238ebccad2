"""Phone width, dark mode, keyboard, prefix, API key, and the request as code."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Stack, running
from tests.e2e.page.conftest import OpenPage
from tests.e2e.page.screen import PrefixProxy
from tests.programs import run_program

pytestmark = pytest.mark.integration

PICTURES = Path(__file__).parents[3] / "examples" / "demo" / "pictures"
TASKS = (
    "translate", "caption", "zero-shot", "generate", "fill-mask",
    "tag", "classify", "embed", "rerank", "answer", "score",
)  # fmt: skip
PHONE = (360, 740)
KEY = "open-sesame"


def test_a_phone_never_scrolls_sideways(open_page: OpenPage) -> None:
    screen = open_page(TASKS[0], size=PHONE)
    small = """() => [...document.querySelectorAll("button, select, summary, input")]
        .filter((e) => e.getClientRects().length && e.getBoundingClientRect().height < 24
                && !["range", "checkbox"].includes(e.type))
        .map((e) => e.outerHTML)"""
    for task in TASKS:
        screen.page.locator(f"[role=tab][data-task='{task}']").click()
        screen.run()
        for options in screen.panel.locator("details").all():
            options.evaluate("details => { details.open = true; }")
        assert screen.width() == PHONE[0], task
        assert screen.page.evaluate(small) == [], task  # at least 24 pixels (WCAG 2.2, 2.5.8)


def test_dark_and_light_follow_the_system_and_the_button(open_page: OpenPage) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    light = open_page("tag", color_scheme="light").page.evaluate(background)
    screen = open_page("tag", color_scheme="dark")
    dark = screen.page.evaluate(background)
    assert light != dark
    theme = screen.page.get_by_role("button", name="Theme")
    theme.click()
    assert theme.inner_text() == "Theme: light"
    assert screen.page.evaluate(background) == light
    screen.page.reload()
    theme.wait_for()
    assert screen.page.evaluate(background) == light  # remembered
    theme.click()
    theme.click()
    assert (theme.inner_text(), screen.page.evaluate(background)) == ("Theme: system", dark)


def test_nothing_moves_where_less_motion_is_preferred(open_page: OpenPage) -> None:
    screen = open_page("rerank", reduced_motion="reduce")
    screen.run()
    durations = """() => [...document.querySelectorAll("*")]
        .flatMap((e) => [getComputedStyle(e), getComputedStyle(e, "::after")])
        .map((style) => style.transitionDuration).filter((duration) => duration !== "0s")"""
    assert screen.page.evaluate(durations) == []


def test_the_keyboard_is_enough(open_page: OpenPage) -> None:
    screen = open_page("translate")
    keyboard = screen.page.keyboard
    screen.panel.wait_for()
    keyboard.press("Tab")
    assert screen.active_name() == "Skip to the tasks"
    for _ in range(10):
        keyboard.press("Tab")
        if screen.active_name() == "Translate":
            break
    keyboard.press("ArrowRight")
    assert screen.active_name() == "Caption"
    assert screen.page.url.endswith("#caption")
    keyboard.press("End")
    assert screen.page.url.endswith("#score")
    keyboard.press("Home")
    keyboard.press("Tab")
    assert screen.active_name() == "A famous sentence (English to French)"
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert screen.page.evaluate(outline) == "solid"
    keyboard.press("Enter")
    screen.wait_until_done()
    for _ in range(20):
        keyboard.press("Tab")
        if screen.active_name() == "The":
            break
    keyboard.press("End")
    keyboard.press("Tab")  # past the words of the source, to those of the translation
    assert screen.active_name() == "L'accord"
    keyboard.press("ArrowRight")
    assert "“sur” looks at “on”" in screen.answer.locator(".readout").inner_text()
    keyboard.press("Tab")  # one stop for the whole matrix
    keyboard.press("ArrowDown")
    keyboard.press("ArrowRight")
    assert screen.active_name().startswith("sur, agreement: ")
    assert "“sur” looks at “agreement”" in screen.answer.locator(".readout").inner_text()
    keyboard.press("End")
    assert screen.active_name().startswith("sur, ⏎: ")


def test_every_control_has_a_name_and_every_id_is_unique(open_page: OpenPage) -> None:
    screen = open_page("translate")
    for tab in screen.page.get_by_role("tab").all():
        tab.click()
        nameless = """() => [...document.querySelectorAll("input, select, textarea, button")]
            .filter((e) => !e.labels?.length && !e.getAttribute("aria-label")
                    && !e.textContent.trim() && !e.querySelector("img[alt]"))
            .map((e) => e.outerHTML)"""
        assert screen.page.evaluate(nameless) == []
    ids = "[...document.querySelectorAll('[id]')].map((e) => e.id)"
    found = screen.page.evaluate(ids)
    assert len(found) == len(set(found))


def test_a_prefix_of_a_proxy_works(open_page: OpenPage, proxied: PrefixProxy) -> None:
    screen = open_page("zero-shot", url=proxied.url)
    screen.run()
    assert screen.answer.locator(".best .bar-label").inner_text() == "large red heart"
    assert f"{proxied.url}/v1/zero-shot" in screen.code("curl")
    assert proxied.paths
    assert all(path.startswith(f"{proxied.prefix}/") for path in proxied.paths)


@pytest.fixture(scope="module")
def locked(translator: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack with one model and a key."""
    folder = tmp_path_factory.mktemp("locked")
    with running(translator, folder, TRIPTYCH_API_KEY=KEY) as stack:
        yield stack


def test_a_key_is_asked_for_and_kept_in_this_tab(open_page: OpenPage, locked: Stack) -> None:
    screen = open_page("translate", url=locked.url)
    screen.expected.append("status of 401")
    page = screen.page
    page.get_by_label("API key").fill("wrong")
    page.get_by_role("button", name="Continue").click()
    assert page.get_by_role("alert").inner_text() == "The server refused this key."
    page.get_by_label("API key").fill(KEY)
    page.keyboard.press("Enter")
    screen.field("Text").fill("El mundo no es suficiente.")
    screen.run()
    assert screen.text == "The world is not enough."
    assert KEY not in page.url
    assert KEY not in page.content()
    assert "$TRIPTYCH_API_KEY" in screen.code("curl")
    assert page.evaluate("JSON.stringify({...localStorage})") == "{}"
    page.reload()
    screen.run()  # still known
    page.get_by_role("button", name="Forget key").click()
    page.get_by_label("API key").wait_for()
    assert page.evaluate("sessionStorage.length") == 0


@pytest.mark.parametrize(("task", "expected"), [
    ("translate", "signé en août 1992."),
    ("zero-shot", "large red heart"),
    ("generate", "background"),
    ("classify", "positive"),
])  # fmt: skip
def test_the_request_runs_as_python_and_as_curl(
    open_page: OpenPage, tmp_path: Path, task: str, expected: str
) -> None:
    screen = open_page(task)
    screen.run()
    for picture in PICTURES.glob("scene-*"):
        shutil.copy(picture, tmp_path)
    commands = {"Python": [sys.executable, "-c"]}
    if shutil.which("curl"):
        commands["curl"] = ["bash", "-c"]
    for language, command in commands.items():
        environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
        shown = run_program(*command, screen.code(language), cwd=tmp_path, env=environment)
        assert expected in shown, language


def test_the_request_is_copied(open_page: OpenPage) -> None:
    screen = open_page("tag", permissions=["clipboard-read", "clipboard-write"])
    screen.press("Copy the request in curl")
    screen.panel.get_by_text("Copied").first.wait_for()
    assert screen.page.evaluate("navigator.clipboard.readText()") == screen.code("curl")


def test_awkward_text_is_quoted(open_page: OpenPage, tmp_path: Path) -> None:
    screen = open_page("fill-mask")
    text = 'It\'s "a" $HOME \\ `date` [MASK]!'
    screen.field("Texts, one a line").fill(text)
    screen.run()
    for language, command in (("Python", [sys.executable, "-c"]), ("curl", ["bash", "-c"])):
        if language == "curl" and not shutil.which("curl"):
            continue
        done = subprocess.run(
            [*command, screen.code(language)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "$ home" in done.stdout.lower(), language


WAIT_S = 20.0
SOME_TEXT = re.compile(r"\S")


def test_a_stream_is_shown_as_it_arrives_and_stops_half_way(
    open_page: OpenPage, proxied: PrefixProxy
) -> None:
    screen = open_page("generate", url=proxied.url)
    screen.panel.wait_for()
    proxied.held.set()  # the proxy sends one event and waits
    screen.press("Generate")
    text = screen.answer.locator(".streamed")
    screen.answer.locator(".streamed", has_text=SOME_TEXT).wait_for()
    early = text.inner_text()
    assert screen.answer.get_attribute("aria-busy") == "true"
    screen.press("Stop")
    screen.panel.locator(".status", has_text="Stopped.").wait_for()
    assert proxied.hung_up.wait(WAIT_S)
    assert text.inner_text() == early
    assert "Stopped before its end." in screen.answer.inner_text()
    assert screen.panel.get_by_role("button", name="Stop", exact=True).count() == 0
    proxied.held.clear()
    screen.run()
    assert len(text.inner_text()) > len(early)


def test_a_stream_that_breaks_keeps_its_text_and_says_so(
    open_page: OpenPage, proxied: PrefixProxy
) -> None:
    screen = open_page("generate", url=proxied.url)
    screen.panel.wait_for()
    proxied.broken.set()  # the proxy closes the connection after one event
    screen.press("Generate")
    assert "The server cannot be reached, or the connection broke." in screen.problem()
    assert screen.answer.locator(".streamed").inner_text() != ""


def test_an_error_in_a_stream_is_said_below_its_text(open_page: OpenPage) -> None:
    screen = open_page("generate")
    error = {"error": {"type": "unavailable", "message": "the model was lost"}}
    chunk = 'data: {"index": 0,\ndata: "text": "a begin"}\n\n'  # an event of two lines
    body = f"{chunk}event: error\ndata: {json.dumps(error)}\n\n"
    screen.page.route(
        "**/v1/generate",
        lambda route: route.fulfill(status=200, content_type="text/event-stream", body=body),
    )
    screen.press("Generate")
    assert "The model was lost." in screen.problem()
    assert screen.answer.locator(".streamed").inner_text() == "a begin"


def test_a_new_request_replaces_the_running_one(open_page: OpenPage, proxied: PrefixProxy) -> None:
    screen = open_page("generate", url=proxied.url)
    screen.panel.wait_for()
    proxied.held.set()
    screen.press("Generate")
    screen.answer.locator(".streamed", has_text=SOME_TEXT).wait_for()
    screen.field("Prompt").press("Control+Enter")
    assert proxied.hung_up.wait(WAIT_S)
    proxied.held.clear()
    screen.wait_until_done()
    assert screen.panel.get_by_role("alert").count() == 0
