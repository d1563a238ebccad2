"""`examples/attention`: its figures exist, have a command, and the numbers that it states."""

from __future__ import annotations

import json
import re

import pytest
from PIL import Image

from benchmarks.figures import NAMES
from benchmarks.figures.__main__ import FACTS, IMAGES, ROOT
from benchmarks.figures.figure import picture

PAGE = ROOT / "examples" / "attention" / "README.md"
TEXT = PAGE.read_text(encoding="utf-8")
RECORDED = json.loads(FACTS.read_text(encoding="utf-8"))
LARGEST_BYTES = 150_000
FIGURE = re.compile(r"^!\[[^\]]+\]\(images/attention-([\w-]+)\.png\)$", re.MULTILINE)
NOT_STATED = re.compile(
    r"```.*?```|\$\$.*?\$\$|\$`?[^$\n]+`?\$|`[^`\n]+`"  # code and formulas
    r"|§\s?[\d.]+|arXiv\s+\d{4}\.\d{4,5}",  # sources
    re.DOTALL,
)
STATED = re.compile(r"(?<![\w.,-])-?\d[\d,]*\.\d+(?: ?%)?|(?<![\w.,-])\d+ ?%")


def numbers(text: str) -> set[str]:
    """Decimal fractions and percentages of a text, apart from formulas, code and sources."""
    plain = NOT_STATED.sub(" ", text)
    return {found.replace(" ", "") for found in STATED.findall(plain)}


def test_the_page_shows_every_figure_once() -> None:
    assert sorted(FIGURE.findall(TEXT)) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_figure_exists_is_small_and_has_its_command(name: str) -> None:
    path = picture(IMAGES, name)
    assert path.stat().st_size <= LARGEST_BYTES
    with Image.open(path) as image:
        assert image.format == "PNG"
    assert f"`python -m benchmarks.figures {name}`" in TEXT


@pytest.mark.parametrize("name", NAMES)
def test_the_page_states_the_recorded_numbers_of_a_figure(name: str) -> None:
    missing = {what: value for what, value in RECORDED[name].items() if value not in TEXT}
    assert missing == {}


def test_every_fraction_and_percentage_of_the_page_is_recorded() -> None:
    known = {value.replace(" ", "") for facts in RECORDED.values() for value in facts.values()}
    assert numbers(TEXT) - known == set()


def test_numbers_are_found_outside_formulas_and_sources() -> None:
    text = "A share of 12.5 % (§3.2, arXiv 1706.03762), $0.5$, `1.5`, 7 % and -0.03, not Llama-3.2."
    assert numbers(text) == {"12.5%", "7%", "-0.03"}
