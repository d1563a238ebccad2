"""Fields of `config.json`: `null` is absent, and refusals name the field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from export.config.config_reader import ConfigReader
from inference.errors import CheckpointError

WITH_DEFAULT: dict[str, Callable[[ConfigReader], Any]] = {
    "integer": lambda reader: reader.integer("x", 3),
    "layers": lambda reader: reader.layers("x", 3),
    "index": lambda reader: reader.index("x", 0),
    "token": lambda reader: reader.token("x", 2, 9),
    "number": lambda reader: reader.number("x", 0.5),
    "flag": lambda reader: reader.flag("x", True),
    "text": lambda reader: reader.text("x", "y"),
    "choice": lambda reader: reader.choice("x", ["a", "b"], "b"),
    "activation": lambda reader: reader.activation("x", "gelu"),
    "pair": lambda reader: reader.pair("x", 7),
    "refuse_unless": lambda reader: reader.refuse_unless(x=True),
}
WITHOUT: dict[str, Callable[[ConfigReader], Any]] = {
    "integer": lambda reader: reader.integer("x"),
    "layers": lambda reader: reader.layers("x"),
    "choice": lambda reader: reader.choice("x", ["a"]),
    "sizes": lambda reader: reader.sizes("x"),
    "numbers": lambda reader: reader.numbers("x"),
    "section": lambda reader: reader.section("x"),
}


@pytest.mark.parametrize("kind", WITH_DEFAULT)
def test_null_is_absent(kind: str) -> None:
    read = WITH_DEFAULT[kind]
    assert read(ConfigReader({"x": None})) == read(ConfigReader({}))


@pytest.mark.parametrize("kind", WITHOUT)
def test_a_field_without_a_default_is_refused_by_name(kind: str) -> None:
    for values in ({"x": None}, {}):
        with pytest.raises(CheckpointError, match="x"):
            WITHOUT[kind](ConfigReader(values))


@pytest.mark.parametrize("kind", WITH_DEFAULT)
def test_other_values_are_refused_by_name(kind: str) -> None:
    with pytest.raises(CheckpointError, match="x"):
        WITH_DEFAULT[kind](ConfigReader({"x": [[]]}))
