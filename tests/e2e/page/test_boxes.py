"""The panels detect and segment, with small random models of `transformers`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Stack, running
from tests.e2e.page.conftest import OpenPage
from tests.e2e.page.screen import REFUSED
from tests.e2e.pictured import DETECTORS, GROUNDED, REPOSITORY, export_labelled
from triptych import Client

pytestmark = [pytest.mark.integration, pytest.mark.full]

PICTURE = Path(__file__).parents[3] / "examples" / "demo" / "pictures" / "scene-2.png"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("boxes")
    export_labelled(folder)
    with running(folder / REPOSITORY, folder) as stack:
        yield stack


@pytest.mark.parametrize("model", DETECTORS)
def test_boxes_lie_over_the_picture_and_light_up(
    model: str, open_page: OpenPage, served: Stack
) -> None:
    screen = open_page("detect", url=served.url)
    screen.panel.locator(".chosen img").first.wait_for()
    screen.field("Model").select_option(model)
    screen.field("Least score").fill("0")
    screen.run()
    with Client(served.url) as client:
        (item,) = client.detect(
            PICTURE, labels=["a ring", "a star"], threshold=0.0, model=model
        ).data
    assert item.boxes
    assert item.width
    rows, frames = screen.answer.locator(".bars li"), screen.answer.locator(".box")
    assert frames.count() == rows.count() == len(item.boxes)
    best = frames.last  # the best one is on top
    left = float(best.evaluate("e => e.style.left").removesuffix("%"))
    assert left == pytest.approx(100 * item.boxes[0].x_min / item.width, abs=0.01)
    shown, picture = best.bounding_box(), screen.answer.locator(".boxed img").bounding_box()
    wanted = (item.boxes[0].x_max - item.boxes[0].x_min) / item.width * picture["width"]
    assert shown["width"] == pytest.approx(wanted, abs=1)
    rows.first.hover()
    assert "lit" in str(best.get_attribute("class"))
    rows.nth(1).hover()
    assert "lit" not in str(best.get_attribute("class"))


@pytest.mark.parametrize("least", [0.0, 1.0])
def test_words_of_a_label_have_a_least_score(
    least: float, open_page: OpenPage, served: Stack
) -> None:
    screen = open_page("detect", url=served.url)
    screen.panel.locator(".chosen img").first.wait_for()
    screen.field("Model").select_option(GROUNDED)
    screen.field("Least score").fill("0")
    screen.panel.locator("details.options summary").click()
    screen.field("Least score of a word in a box's label").fill(str(least))
    screen.run()
    given = {"labels": ["a ring", "a star"], "threshold": 0.0, "text_threshold": least}
    with Client(served.url) as client:
        (item,) = client.detect(PICTURE, **given, model=GROUNDED).data
    assert item.boxes
    assert bool(item.boxes[0].label) == (least == 0)
    best = screen.answer.locator(".box").last
    assert (best.get_attribute("title") or "") == item.boxes[0].label


def test_a_picture_without_boxes_says_so(open_page: OpenPage, served: Stack) -> None:
    screen = open_page("detect", url=served.url)
    screen.panel.locator(".chosen img").first.wait_for()
    screen.field("Least score").fill("1")
    screen.run()
    assert "Nothing reached" in screen.answer.inner_text()


def test_labels_are_left_to_the_model_which_may_need_them(
    open_page: OpenPage, served: Stack
) -> None:
    screen = open_page("detect", url=served.url)
    screen.expected.append(REFUSED)
    screen.panel.locator(".chosen img").first.wait_for()
    screen.press("Remove label 2")
    screen.field("label 1").fill("")
    screen.panel.get_by_role("button", name="Detect", exact=True).click()
    assert "finds things by their labels: give some" in screen.problem()


def test_a_mask_lies_over_the_picture_for_the_label_that_one_points_at(
    open_page: OpenPage, served: Stack
) -> None:
    screen = open_page("segment", url=served.url)
    screen.panel.locator(".chosen img").first.wait_for()
    screen.run()
    with Client(served.url) as client:
        (item,) = client.segment(PICTURE, labels=["a ring", "a star"]).data
    assert item.masks
    rows, layers = screen.answer.locator(".bars li"), screen.answer.locator(".segment")
    assert layers.count() == rows.count() == 2
    for place, mask in enumerate(item.masks):
        rows.nth(place).hover()
        lit = [layers.nth(other).evaluate("e => e.matches('.lit')") for other in range(2)]
        assert lit == [place == 0, place == 1]
        image = layers.nth(place).evaluate("e => getComputedStyle(e).maskImage")
        assert mask.mask in image
        assert layers.nth(place).evaluate("e => getComputedStyle(e).maskMode") == "luminance"
        assert f"{mask.max_probability:.1%}"[:3] in rows.nth(place).inner_text()
    shown, picture = layers.first.bounding_box(), screen.answer.locator(".boxed img").bounding_box()
    assert shown == picture
