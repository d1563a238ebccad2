"""The pages stay few and short enough to be read."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
MOST_WORDS = 60_000
FOR_NEWCOMERS = 12_000


def words(page: Path) -> int:
    """Words of a page, as `wc -w` counts them."""
    return len(page.read_text(encoding="utf-8").split())


def pages() -> dict[str, int]:
    """Page below `docs/` → its words."""
    return {str(page.relative_to(DOCS)): words(page) for page in DOCS.rglob("*.md")}


def listed(counted: dict[str, int]) -> str:
    """The sum, and the longest pages."""
    longest = sorted(counted.items(), key=lambda page: -page[1])[:10]
    lines = [f"{count:6} {name}" for name, count in longest]
    return "\n".join([f"{sum(counted.values())} words, of which", *lines])


def test_pages_are_bounded() -> None:
    counted = pages()
    print(listed(counted))
    assert sum(counted.values()) <= MOST_WORDS, listed(counted)


def test_what_a_newcomer_reads_is_named_in_order_and_bounded() -> None:
    text = (DOCS / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)]+)\)", text.partition("|")[0])
    assert links == [
        *("../README.md", "architecture.md", "tutorials/task.md", "tutorials/architecture.md"),
        *("engine.md", "export.md", "verify.md", "endpoints/translate.md"),
    ]
    counted = {link: words(DOCS / link) for link in links}
    print(listed(counted))
    assert sum(counted.values()) <= FOR_NEWCOMERS, listed(counted)
