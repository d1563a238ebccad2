"""The pictures of the README and of docs/page.md: `make page-images` writes them."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from tests.e2e.page.conftest import OpenPage
from tests.e2e.page.screen import Screen

pytestmark = pytest.mark.integration

MOST_BYTES = 150_000
SIZE = (1200, 1000)


def alignment(screen: Screen) -> None:
    """A word of the famous sentence and what it looks at."""
    screen.example("A famous sentence (English to French)")
    screen.answer.get_by_role("button", name="économique").click()


def attention(screen: Screen) -> None:
    """A word of a caption over its picture, and all words beside it."""
    screen.field("Model").select_option("example-show-attend-tell")
    screen.press("a large yellow checked crescent above a small purple checked diamond"
                 " on a green background")  # fmt: skip
    screen.panel.get_by_role("button", name="Remove scene-3.png").wait_for()
    screen.run()
    screen.answer.get_by_text("Every word at once").click()
    screen.answer.locator(".every-word li").last.wait_for()
    screen.answer.get_by_role("button", name="crescent").click()


def few_shot(screen: Screen) -> None:
    """A code that only the prompt defines."""
    screen.example("A code from four examples")


def labels(screen: Screen) -> None:
    """Labels that differ in one word."""
    screen.example("One word differs")


@pytest.mark.parametrize(
    ("task", "show", "scheme"),
    [
        ("translate", alignment, "light"),
        ("caption", attention, "dark"),
        ("zero-shot", labels, "light"),
        ("generate", few_shot, "dark"),
    ],
)
def test_pictures_of_the_page_are_small(
    open_page: OpenPage, tmp_path: Path, task: str, show: Callable[[Screen], None], scheme: str
) -> None:
    folder = Path(os.environ.get("PAGE_IMAGES") or tmp_path)
    screen = open_page(task, size=SIZE, color_scheme=scheme, reduced_motion="reduce")
    show(screen)
    screen.page.evaluate("document.activeElement.blur()")
    picture = Image.open(io.BytesIO(screen.page.screenshot())).convert("RGB")
    path = folder / f"page-{task}.png"
    few_colours = picture.quantize(256, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    few_colours.save(path, optimize=True)
    assert path.stat().st_size <= MOST_BYTES
