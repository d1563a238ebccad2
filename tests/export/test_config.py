"""Fields of `config.json`, and tables of names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Rename, WeightLayout
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


@dataclass(frozen=True, kw_only=True)
class _Tower:
    supported = {"channels": 3}
    width: int = key("hidden_size")
    heads: int = key("num_heads", kind="heads")
    sides: tuple[int, int] = key("image_size", 4)


@dataclass(frozen=True, kw_only=True)
class _Whole:
    tower: _Tower = key("vision")
    is_scaled: bool = key("scaled", False)
    scale: float


VISION = {"hidden_size": 8, "num_heads": 2, "image_size": [4, 6]}


def test_fields_are_read_by_their_keys_and_sections_by_their_dataclasses() -> None:
    read = ConfigReader({"vision": VISION, "scaled": None}).read(_Whole, scale=0.5)
    assert read == _Whole(tower=_Tower(width=8, heads=2, sides=(4, 6)), is_scaled=False, scale=0.5)


def test_defaults_and_names_of_a_family_take_precedence() -> None:
    values = {"n_head": 3, "hidden_size": None}
    reader = ConfigReader(values, defaults={"hidden_size": 9}, names={"num_heads": "n_head"})
    assert reader.read(_Tower) == _Tower(width=9, heads=3, sides=(4, 4))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"channels": 1}, "config.json, vision: channels = 1 is not supported, only 3 is"),
        ({"hidden_size": "x"}, "config.json, vision: hidden_size must be a whole number"),
        ({"num_heads": 3}, "hidden_size = 8 is not a multiple of num_heads = 3"),
        ({"image_size": [4, 0]}, "image_size must be one or two sizes"),
    ],
)
def test_values_of_a_section_are_refused_by_name(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(CheckpointError, match=reason):
        ConfigReader({"vision": VISION | change}).read(_Whole, scale=0.5)


TABLE = Rename(
    {
        "h.*.fc": "blocks.*.up",
        "h.*.c_attn": WeightLayout(("blocks.*.query", "blocks.*.key"), is_transposed=True),
        "bias_row": WeightLayout(("bias",), is_squeezed=True),
        "h.*.mask": None,
        "first": "table",
        "second": "table",
    }
)


def test_layer_numbers_and_leaves_are_carried_over() -> None:
    assert TABLE.find("h.12.fc.weight").targets == ("blocks.12.up.weight",)


def test_stacked_conv1d_is_split_and_transposed() -> None:
    tensor = torch.arange(8.0).view(2, 4)  # (in, out)
    pieces = dict(TABLE.find("h.0.c_attn.weight").pieces(tensor))
    assert torch.equal(pieces["blocks.0.query.weight"], tensor[:, :2].T)
    assert torch.equal(pieces["blocks.0.key.weight"], tensor[:, 2:].T)


def test_leading_ones_are_dropped_where_declared() -> None:
    pieces = dict(TABLE.find("bias_row").pieces(torch.zeros(1, 3)))
    assert pieces["bias"].shape == (3,)


def test_ignored_tensors_have_no_place_and_unknown_ones_raise() -> None:
    assert TABLE.find("h.3.mask").targets == ()
    with pytest.raises(KeyError):
        TABLE.find("h.3.other.weight")


def test_origin_gives_the_checkpoint_name_the_first_of_several() -> None:
    assert TABLE.origin("blocks.4.key.weight") == "h.4.c_attn.weight"
    assert TABLE.origin("table.weight") == "first.weight"


def test_prefixed_table_is_part_of_a_larger_one() -> None:
    larger = Rename(TABLE.prefixed("decoder.", "text."))
    assert larger.find("decoder.h.1.fc.bias").targets == ("text.blocks.1.up.bias",)
    assert larger.find("decoder.h.1.mask").targets == ()


def test_names_of_tensorflow_are_read() -> None:
    table = Rename({"h.*.LayerNorm": "blocks.*.norm"})
    assert table.find("h.3.LayerNorm.gamma").targets == ("blocks.3.norm.weight",)
    assert table.find("h.3.LayerNorm.beta").targets == ("blocks.3.norm.bias",)
