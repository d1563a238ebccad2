"""How pydantic fields become protobuf fields."""

from typing import Annotated

import pytest
from pydantic import Field

from codegen.lock import LockedField, updated
from codegen.proto import proto_text
from codegen.schema import ProtoField, ProtoMessage, proto_messages
from triptych.messages import Item, Message, Request, Response
from triptych.task import Task


class Part(Message):
    name: str


class OddRequest(Request):
    images: list[str] = Field(description="Base64.")
    small: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    large: Annotated[int, Field(ge=0, le=2**31)] | None = None
    unbounded: int
    is_on: bool = True
    weights: dict[int, float] | None = None
    rows: list[list[float]] | None = None
    pairs: list[list[str]] = []
    parts: list[Part] | None = None


class OddItem(Item):
    part: Part | None = None
    grid: list[list[Part]] | None = None
    more: list[list[Part]] = []
    ratio: float


class OddResponse(Response[OddItem]):
    pass


ODD = Task("odd", "Odd.", OddRequest, OddResponse, inputs="images")


def test_types_follow_the_rule() -> None:
    by_name = {message.name: message for message in proto_messages([ODD])}
    assert {field.name: field.type for field in by_name["OddRequest"].fields} == {
        "images": "repeated bytes",
        "small": "optional int32",
        "large": "optional int64",
        "unbounded": "int64",
        "is_on": "optional bool",  # an absent one is the default, not false
        "weights": "map<int64, double>",
        "rows": "repeated Row",
        "pairs": "repeated LanguagePair",
        "parts": "repeated Part",
        "model": "optional string",
    }
    assert {field.name: field.type for field in by_name["OddItem"].fields} == {
        "part": "optional Part",
        "grid": "repeated PartList",
        "more": "repeated PartList",
        "ratio": "double",
        "index": "int64",
        "error": "optional ItemError",
    }


def test_list_of_lists_of_messages_has_one_message_for_its_rows() -> None:
    (rows,) = (message for message in proto_messages([ODD]) if message.name == "PartList")
    assert [(field.name, field.type) for field in rows.fields] == [("values", "repeated Part")]


def test_rows_and_a_message_of_the_same_name_are_refused() -> None:
    class PartList(Message):
        name: str

    class ListedItem(Item):
        list: PartList

    class ListedResponse(Response[ListedItem]):
        pass

    task = Task("listed", "", OddRequest, ListedResponse, inputs="images")
    with pytest.raises(ValueError, match="several messages are called PartList"):
        proto_messages([ODD, task])


@pytest.mark.parametrize("kind", [int, bool])
def test_lists_of_lists_of_other_scalars_are_refused(kind: type) -> None:
    class GridItem(Item):
        grid: list[list[kind]]

    class GridResponse(Response[GridItem]):
        pass

    with pytest.raises(TypeError, match="grid: lists of lists hold numbers, strings or messages"):
        proto_messages([Task("grid", "", OddRequest, GridResponse, inputs="images")])


def test_type_without_counterpart_is_refused() -> None:
    class BytesItem(Item):
        data: bytes

    class BytesResponse(Response[BytesItem]):
        pass

    with pytest.raises(TypeError, match="data"):
        proto_messages([Task("bytes", "", OddRequest, BytesResponse, inputs="images")])


def test_two_messages_of_one_name_are_refused() -> None:
    class Part(Message):
        other: str

    class PartItem(Item):
        part: Part

    class PartResponse(Response[PartItem]):
        pass

    with pytest.raises(ValueError, match="several messages are called Part"):
        proto_messages([ODD, Task("part", "", OddRequest, PartResponse, inputs="images")])


def test_removed_fields_are_reserved_in_the_text() -> None:
    lock = {"M": {"a": LockedField(1, "string"), "b": LockedField(2, "bool")}}
    message = ProtoMessage("M", (ProtoField("c", "bool", "Whether."),), "A message.")
    text = proto_text([message], [], updated(lock, [message]))
    assert 'reserved 1, 2;\n  reserved "a", "b";\n  // Whether.\n  bool c = 3;\n}' in text
    assert "// A message.\nmessage M {" in text
