"""The page in a headless Chromium; every test fails on what the page writes to the console."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.e2e.conftest import Stack
from tests.e2e.page.screen import PrefixProxy, Screen

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
WIDE = (1280, 900)
TIMEOUT_MS = 30_000.0

OpenPage = Callable[..., Screen]


@pytest.fixture(scope="session", autouse=True)
def needs_chromium() -> None:
    """Skips before a stack is started for nothing."""
    pytest.importorskip("playwright", reason="the Python package playwright is not installed")
    if not CHROMIUM:
        pytest.skip("no Chromium is installed (Debian: apt-get install chromium)")


@pytest.fixture(scope="package")
def browser() -> Iterator[object]:
    """A Chromium of the system; for this package alone, because its loop excludes asyncio's."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--process-per-site"])
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def tabs(browser: Any) -> Iterator[Any]:
    """A context whose tabs have one process: another one for each takes as long as a test."""
    with browser.new_context() as context:
        yield context


@pytest.fixture
def open_page(browser: Any, tabs: Any, request: pytest.FixtureRequest) -> Iterator[OpenPage]:
    """Opens a panel in a tab; fails if the page has written a warning or error.

    Without a URL it is the page of `stack`, which is started only then. With options it has a
    context of its own.
    """
    opened: list[Screen] = []

    def open_at(
        task: str, *, url: str | None = None, size: tuple[int, int] = WIDE, **options: object
    ) -> Screen:
        url = url or request.getfixturevalue("stack").url
        if not tabs.pages:
            tabs.new_page().goto(f"{url}/live")  # stays open, and the process with it
        context = browser.new_context(**options) if options else tabs
        context.set_default_timeout(TIMEOUT_MS)
        opened.append(Screen(context.new_page()))
        opened[-1].page.set_viewport_size({"width": size[0], "height": size[1]})
        opened[-1].open(url, task)
        return opened[-1]

    yield open_at
    for screen in opened:
        screen.page.close()
        if screen.page.context is not tabs:
            screen.page.context.close()
    tabs.set_offline(False)
    complaints = [text for screen in opened for text in screen.unexpected_complaints()]
    assert complaints == []


@pytest.fixture
def proxied(stack: Stack) -> Iterator[PrefixProxy]:
    """The stack behind a proxy that adds the prefix `/models/demo/`."""
    with proxy(stack.url) as made:
        yield made


@contextmanager
def proxy(url: str) -> Iterator[PrefixProxy]:
    """A proxy in front of a gateway, for as long as the block runs."""
    made = PrefixProxy(url, "/models/demo")
    made.start()
    try:
        yield made
    finally:
        made.stop()
