"""A value of another kind in a field of any JSON file has no effect, or is refused in one line."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import typer

from export.pipeline import build, cli
from export.registry import families
from tests.export.saved_folders import make_older, save
from tests.export.twin import EXPORTED
from tests.export.twins import twin_of

Place = tuple[str | int, ...]
"""Names and indices that lead to a value."""
KINDS: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    3,
    2**31 - 1,
    10**30,
    0.5,
    "x",
    "",
    [],
    [1],
    ["x"],
    [[]],
    {},
    {"x": 1},
)
"""One or several of each kind of JSON."""
_LONGEST = 3
"""Entries of a list, or of a section of many fields, that are changed."""


def places(value: Any, place: Place = (), depth: int = 4) -> Iterator[Place]:
    """The place of each field, sections and lists included; of lists and tables the first few."""
    if place:
        yield place
    if depth == 0:
        return
    entries: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        entries = list(value.items())
    elif isinstance(value, list):
        entries = list(enumerate(value))
    is_table = isinstance(value, list) or (len(entries) > 50 and place)
    for name, inner in entries[: _LONGEST if is_table else None]:
        yield from places(inner, (*place, name), depth - 1)


def with_value(whole: Any, place: Place, value: Any) -> Any:
    """A copy with another value at one place."""
    if not place:
        return value
    changed = copy.copy(whole)
    changed[place[0]] = with_value(whole[place[0]], place[1:], value)
    return changed


def malformed(path: Path) -> Iterator[tuple[str, str]]:
    """(what is changed, text of the file) of every change to one JSON file."""
    whole = json.loads(path.read_text())
    for place in ((), *places(whole)):
        name = ".".join(map(str, place))
        for value in KINDS:
            yield f"{path.name}, {name} = {value!r}", json.dumps(with_value(whole, place, value))


class Planned(BaseException):
    """Raised where the graphs would be exported."""


_FEW = ["bert", "marian", "bart", "llama", "vit", "clip", "instructblip", "idefics3"]
_ALL = [name for name in families() if twin_of(name).is_transformers]


@pytest.mark.parametrize("is_older", [False, True])
@pytest.mark.parametrize(
    ("name", "count"),
    [(name, 12) for name in _FEW]
    + [pytest.param(name, 400, marks=pytest.mark.full) for name in _ALL],
)
def test_value_of_another_kind_is_refused_or_has_no_effect(
    name: str, count: int, is_older: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*arguments: object, **options: object) -> None:
        raise Planned

    monkeypatch.setattr(build, "_stage", stop)
    monkeypatch.setattr(build, "phase", lambda title: nullcontext())
    folder, refused = tmp_path / name, 0
    folder.mkdir()
    save(name, EXPORTED, folder)
    if is_older:
        make_older(folder)
    files = sorted(folder.rglob("*.json"))
    cases = [(path, *case) for path in files for case in malformed(path)]
    chosen = random.Random(f"{name} {is_older}")
    for path, title, text in chosen.sample(cases, min(count, len(cases))):
        before = path.read_text()
        path.write_text(text)
        try:
            cli.export(str(folder), repository=tmp_path / "repository", name=None, task=None)
        except Planned:
            pass
        except typer.Exit:
            refused += 1
        except BaseException as error:
            error.add_note(title)
            raise
        path.write_text(before)
    assert refused
