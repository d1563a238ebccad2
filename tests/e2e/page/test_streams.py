"""Streams: text appears while it is generated, and a stream can be stopped half-way."""

from __future__ import annotations

import json
import re

import pytest

from tests.e2e.page.conftest import OpenPage
from tests.e2e.page.proxy import PrefixProxy

pytestmark = pytest.mark.integration

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
