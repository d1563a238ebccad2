"""The page in a headless Chromium; every test fails on what the page writes to the console."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.e2e.conftest import Stack
from tests.e2e.page.proxy import PrefixProxy
from tests.e2e.page.screen import Screen

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
        browser = driver.chromium.launch(executable_path=CHROMIUM)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: object, request: pytest.FixtureRequest) -> Iterator[OpenPage]:
    """Opens a panel in a context of its own; fails if the page has written a warning or error.

    Without a URL it is the page of `stack`, which is started only then.
    """
    opened: list[Screen] = []

    def open_at(
        task: str, *, url: str | None = None, size: tuple[int, int] = WIDE, **options: object
    ) -> Screen:
        url = url or request.getfixturevalue("stack").url
        viewport = {"width": size[0], "height": size[1]}
        context = browser.new_context(viewport=viewport, **options)
        context.set_default_timeout(TIMEOUT_MS)
        opened.append(Screen(context.new_page()))
        opened[-1].open(url, task)
        return opened[-1]

    yield open_at
    for screen in opened:
        screen.page.context.close()
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
