"""Result files and tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def write_json(report: Any, file: Path) -> None:
    """Written whole, or not at all; values that JSON lacks as text."""
    file.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report, indent=1, ensure_ascii=False, default=str) + "\n"
    staged = file.with_suffix(".partial")
    staged.write_text(text, encoding="utf-8")
    staged.replace(file)


def markdown(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    rule = ["---"] * len(header)
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, rule, *lines])
