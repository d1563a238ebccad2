"""Files of terms: CSV, two columns with a tab between, lines `term => rendering`, or JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from triptych.errors import InvalidArgument

ARROW = " => "


def read_terms(path: Path) -> dict[str, str]:
    """Term → rendering of a file; its suffix says what it is: `.csv`, `.json`, or else text.

    A file has no header. JSON is an object of terms, or one with the object `terms`, as
    `triptych glossary show --json` prints it.

    Raises:
        InvalidArgument: not such a file, an entry is blank, or a term stands twice with different
            renderings.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")  # spreadsheets write a byte order mark
    except UnicodeDecodeError:
        raise InvalidArgument(f"{path} is not UTF-8 text") from None
    read = {".csv": _csv, ".json": _json}.get(path.suffix.lower(), _lines)
    terms: dict[str, str] = {}
    for place, term, rendering in read(text, path):
        term, rendering = term.strip(), rendering.strip()
        if not (term and rendering):
            raise InvalidArgument(f"{path}: {place}: the term or its rendering is blank")
        if terms.setdefault(term, rendering) != rendering:
            raise InvalidArgument(f"{path}: {place}: {term!r} has two different renderings")
    return terms


Entries = Iterator[tuple[str, str, str]]
"""(place, term, rendering)"""


def _csv(text: str, path: Path) -> Entries:
    rows = csv.reader(text.splitlines(keepends=True), strict=True)
    try:
        for row in rows:
            if any(cell.strip() for cell in row):
                yield f"line {rows.line_num}", *_pair(row, f"line {rows.line_num}", path)
    except csv.Error as error:
        raise InvalidArgument(f"{path}: line {rows.line_num}: {error}") from None


def _pair(row: list[str], place: str, path: Path) -> tuple[str, str]:
    if len(row) != 2:
        raise InvalidArgument(
            f"{path}: {place}: has {len(row)} columns, not 2: term, rendering "
            '(with a comma inside: "term","a, b")'
        )
    return row[0], row[1]


def _lines(text: str, path: Path) -> Entries:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            term, separator, rendering = line.partition("\t" if "\t" in line else ARROW)
            if not separator or "\t" in rendering:
                raise InvalidArgument(
                    f'{path}: line {number}: a line is "term{ARROW}rendering", or two columns with '
                    f"a tab between, not {line.strip()!r}"
                )
            yield f"line {number}", term, rendering


def _json(text: str, path: Path) -> Entries:
    try:
        found = json.loads(text, object_pairs_hook=_Pairs)
    except ValueError as error:
        raise InvalidArgument(f"{path} is not JSON: {error}") from None
    inner = dict(found).get("terms") if isinstance(found, _Pairs) else None
    pairs = inner if isinstance(inner, _Pairs) else found
    if not isinstance(pairs, _Pairs) or not all(isinstance(text, str) for _, text in pairs):
        raise InvalidArgument(f'{path} is not an object of texts: {{"term": "rendering"}}')
    for number, (term, rendering) in enumerate(pairs, 1):
        yield f"term {number}", term, rendering


class _Pairs(list[tuple[str, Any]]):
    """A JSON object; a dict would hide names that stand twice."""
