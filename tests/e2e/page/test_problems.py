"""What the page says when something is wrong, and what it does without a connection."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.conftest import Stack
from tests.e2e.page.conftest import OpenPage
from tests.e2e.page.screen import REFUSED, PrefixProxy

pytestmark = pytest.mark.integration


def test_a_refused_field_is_named_and_marked(open_page: OpenPage) -> None:
    screen = open_page("generate")
    screen.expected.append(REFUSED)
    screen.field("Tokens at most").fill("0")
    screen.press("Generate")
    assert "Input should be greater than or equal to 1" in screen.problem()
    assert "max_new_tokens" in screen.problem()
    assert screen.field("Tokens at most").get_attribute("aria-invalid") == "true"
    screen.field("Tokens at most").fill("5")
    screen.run()
    assert screen.field("Tokens at most").get_attribute("aria-invalid") is None


def test_what_is_missing_is_said_before_anything_is_sent(open_page: OpenPage) -> None:
    screen = open_page("translate")
    sent: list[str] = []
    screen.page.on("request", lambda request: sent.append(request.method))
    screen.field("Text").fill(" ")
    screen.press("Translate")
    assert "Write a text to translate." in screen.problem()
    assert "POST" not in sent


def test_an_item_that_failed_is_reported_in_its_place(open_page: OpenPage) -> None:
    screen = open_page("fill-mask")
    screen.field("Texts, one a line").fill("The cat [MASK].\nNo gap here.")
    screen.run()
    items = screen.answer.locator("article")
    assert items.nth(0).locator(".bars").count() == 1
    assert "No result." in items.nth(1).inner_text()
    assert "No gap here." in items.nth(1).inner_text()


def test_a_busy_server_says_when_to_try_again(open_page: OpenPage) -> None:
    screen = open_page("rerank")
    screen.expected.append(REFUSED)
    error = {"error": {"type": "overloaded", "message": "too many requests"}}

    def refuse(route: Any) -> None:
        headers = {"retry-after": "7", "content-type": "application/json"}
        route.fulfill(status=429, headers=headers, body=json.dumps(error))

    screen.page.route("**/v1/rerank", refuse)
    screen.press("Rank")
    assert "The server is busy. Too many requests." in screen.problem()
    assert "Try again (in 7 s)" in screen.problem()
    screen.page.unroute("**/v1/rerank")
    screen.panel.get_by_role("button", name="Try again").click()
    screen.wait_until_done()
    assert screen.panel.get_by_role("alert").count() == 0


def test_a_broken_connection_is_said(open_page: OpenPage) -> None:
    screen = open_page("tag")
    screen.expected.append(REFUSED)
    screen.panel.wait_for()
    screen.page.context.set_offline(True)
    screen.press("Tag")
    assert "The server cannot be reached" in screen.problem()
    screen.page.context.set_offline(False)
    screen.press("Try again")
    screen.wait_until_done()


def test_an_alignment_that_a_model_lacks_is_left_out(open_page: OpenPage) -> None:
    screen = open_page("translate")
    screen.expected.append(REFUSED)
    screen.field("Text").fill("Signed in August.")
    sent: list[dict[str, object]] = []
    message = "the model returns no alignment"
    error = {"error": {"type": "x", "message": message, "field": "return_attention"}}

    def without(route: Any) -> None:
        sent.append(route.request.post_data_json)
        if "return_attention" in sent[-1]:
            route.fulfill(status=422, content_type="application/json", body=json.dumps(error))
        else:
            route.continue_()

    screen.page.route("**/v1/translate", without)
    screen.run()
    assert screen.text
    assert "example-en-fr does not support return_attention." in screen.answer.inner_text()
    screen.run()
    assert ["return_attention" in body for body in sent] == [True, False, False]


def test_text_is_never_markup(open_page: OpenPage) -> None:
    screen = open_page("tag")
    text = '<img src=x onerror="alert(1)"> & <b>Ana</b> visited Rome.'
    screen.field("Texts, one a line").fill(text)
    screen.run()
    assert screen.answer.locator("img, b").count() == 0
    assert "<b>" in screen.text


def test_an_answer_belongs_to_what_was_sent(open_page: OpenPage) -> None:
    screen = open_page("tag")
    text = screen.field("Texts, one a line")
    text.fill("Ana visited Rome.")
    waiting: list[Any] = []
    screen.page.route("**/v1/tag", lambda route: waiting.append(route))
    with screen.page.expect_request("**/v1/tag"):
        screen.press("Tag")
    text.fill("Something else, written while the request runs.")
    waiting.pop().continue_()
    screen.wait_until_done()
    assert screen.text.startswith("Ana")


def test_operations_are_listed_from_this_host_alone(stack: Stack, open_page: OpenPage) -> None:
    screen = open_page("translate")
    screen.page.goto(f"{stack.url}/docs")
    screen.page.locator("#api .opblock").first.wait_for()
    shown = screen.page.locator("#api .opblock-summary-path").all_inner_texts()
    assert len(shown) > 20
    assert any("translate" in path for path in shown)
    assert screen.hosts == {stack.url.split("/")[2]}


def test_a_request_is_sent_from_behind_a_proxy(proxied: PrefixProxy, open_page: OpenPage) -> None:
    screen = open_page("translate", url=proxied.url)
    screen.page.goto(f"{proxied.url}/docs")
    operation = screen.page.locator(".opblock", has_text="/v1/models").first
    operation.locator(".opblock-summary-control").click()
    operation.get_by_role("button", name="Try it out").click()
    operation.get_by_role("button", name="Execute").click()
    answer = operation.locator(".live-responses-table tbody .response-col_status").first
    answer.wait_for()
    assert "200" in answer.inner_text()
