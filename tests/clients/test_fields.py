"""Types, ranges and descriptions of fields, read from annotations of any nesting."""

from typing import Annotated, Literal

import pytest
from pydantic import Field

from triptych.fields import Bounds, field_of, fields_of, list_name, listed, reachable
from triptych.messages import Item, ItemError, Message, Response, Usage

Small = Annotated[int, Field(ge=1, le=9, description="A digit.")]


class Leaf(Message):
    name: str


class Base(Item):
    inherited: str | None = Field(default=None, description="From the base.")


class Tree(Base):
    optional: Small | None = None
    open: Annotated[float, Field(gt=0, lt=1)] = Field(default=0.5, description="A share.")
    many: Annotated[list[str], Field(min_length=1)]
    rows: list[list[float]] = []
    by_id: dict[int, float] | None = None
    kind: Literal["a", "b"] = "a"
    leaf: Leaf | None = None
    leaves: list[Leaf] = []
    grid: list[list[Leaf]] = []


class TreeResponse(Response[Tree]):
    pass


FIELDS = fields_of(Tree)


@pytest.mark.parametrize(
    ("name", "type_", "shape"),
    [
        ("optional", int, "one"),
        ("open", float, "one"),
        ("many", str, "list"),
        ("rows", float, "rows"),
        ("by_id", float, "map"),
        ("kind", str, "one"),
        ("leaf", Leaf, "one"),
        ("leaves", Leaf, "list"),
        ("grid", Leaf, "rows"),
        ("inherited", str, "one"),
    ],
)
def test_type_and_shape(name: str, type_: type, shape: str) -> None:
    assert (FIELDS[name].type, FIELDS[name].shape) == (type_, shape)


def test_own_fields_precede_inherited_ones() -> None:
    names = list(FIELDS)
    assert names[:2] == ["optional", "open"]
    assert set(names[-3:]) == {"index", "error", "inherited"}


def test_presence_and_defaults() -> None:
    assert FIELDS["optional"].is_optional
    assert not FIELDS["many"].is_optional
    assert [name for name, field in FIELDS.items() if field.is_required] == ["many", "index"]
    assert FIELDS["open"].default == 0.5
    assert FIELDS["by_id"].key is int


def test_ranges_are_found_inside_unions() -> None:
    assert FIELDS["optional"].bounds == Bounds(minimum=1, maximum=9)
    assert FIELDS["open"].bounds == Bounds(above=0, below=1)
    assert (FIELDS["optional"].bounds.largest, FIELDS["open"].bounds.largest) == (9, 1)


def test_description_of_the_field_precedes_that_of_its_type() -> None:
    assert FIELDS["optional"].description == "A digit."
    assert FIELDS["open"].description == "A share."
    assert field_of("x", Small | None).description == "A digit."


@pytest.mark.parametrize("annotation", [bytes, set[str], object])
def test_type_that_the_protocol_lacks_is_refused(annotation: object) -> None:
    with pytest.raises(TypeError, match=r"x: .* is no type of the protocol"):
        field_of("x", annotation)


def test_reachable_messages_follow_their_fields() -> None:
    assert reachable([TreeResponse]) == [TreeResponse, Tree, Leaf, ItemError, Usage]


def test_messages_of_rows_are_listed_once() -> None:
    assert listed([TreeResponse, Tree, Tree, Leaf]) == [Leaf]
    assert list_name(Leaf) == "LeafList"
