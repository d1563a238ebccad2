"""Figures of the README are those of the pages that hold the whole tables."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("page", "heading"),
    [("docs/speed", "| tokens/s"), ("examples/quality", "| measure | PyTorch")],
)
def test_tables_of_the_readme_are_rows_of_the_page(page: str, heading: str) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = (heading + readme.partition(heading)[2].partition("\n\n")[0]).splitlines()
    whole = (ROOT / f"{page}.md").read_text(encoding="utf-8").splitlines()
    assert len(rows) > 2
    assert [row for row in rows if row not in whole] == []
