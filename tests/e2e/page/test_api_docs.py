"""`/docs` in a browser: Swagger UI shows every operation, and asks no other host for anything."""

import pytest

from tests.e2e.conftest import Stack
from tests.e2e.page.conftest import OpenPage
from tests.e2e.page.proxy import PrefixProxy

pytestmark = pytest.mark.integration


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
