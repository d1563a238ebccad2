"""Fields of requests: types, ranges, earlier names, images in any form, arguments."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from PIL import Image
from pydantic import Field, ValidationError

from tests.pictures import encoded, noise
from triptych import images
from triptych.errors import InvalidArgument, UnreadableImage
from triptych.fields import Bounds, field_of, fields_of, list_name, reachable, row_messages
from triptych.messages import Item, ItemError, Message, Request, Response, Usage
from triptych.operation import operation
from triptych.task import Task
from triptych.tasks import TASKS
from triptych.tasks.caption import TASK, CaptionRequest, CaptionResponse
from triptych.tasks.generate import TASK as GENERATE
from triptych.tasks.generate import Example, GenerateResponse
from triptych.tasks.zero_shot import TASK as ZERO_SHOT
from triptych.tasks.zero_shot import ZeroShotResponse

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
    assert row_messages([TreeResponse, Tree, Tree, Leaf]) == [Leaf]
    assert list_name(Leaf) == "LeafList"


RENAMED = {
    ("translate", "alternatives"): "n",
    ("translate", "return_alignment"): "return_attention",
    ("caption", "alternatives"): "n",
    ("rerank", "top_n"): "top_k",
}
REQUIRED: dict[str, dict[str, Any]] = {
    "translate": {"texts": ["a"]},
    "caption": {"images": ["aGk="]},
    "rerank": {"query": ["a"], "documents": ["b"]},
}


def asked(task: Task, **fields: Any) -> Request:
    return task.request(**REQUIRED[task.name], **fields)


def test_these_fields_have_earlier_names() -> None:
    found = {
        (task.name, field.name): field.current_name
        for task in TASKS.values()
        for field in fields_of(task.request).values()
        if field.current_name is not None
    }
    assert found == RENAMED


@pytest.mark.parametrize(("place", "current"), RENAMED.items())
def test_an_earlier_name_is_the_current_one(place: tuple[str, str], current: str) -> None:
    task, earlier = TASKS[place[0]], place[1]
    value = True if earlier.startswith("return") else 3
    wanted = asked(task, **{current: value})
    assert asked(task, **{earlier: value}) == wanted
    assert asked(task, **{earlier: value, current: value}) == wanted
    assert earlier not in asked(task, **{earlier: value}).model_dump(exclude_none=True)
    body = json.dumps({**REQUIRED[task.name], earlier: value})
    assert task.request.model_validate_json(body) == wanted


@pytest.mark.parametrize(("place", "current"), RENAMED.items())
def test_two_values_for_one_field_are_refused(place: tuple[str, str], current: str) -> None:
    earlier = place[1]
    values = (True, False) if earlier.startswith("return") else (2, 3)
    with pytest.raises(ValidationError, match=f"{earlier} is an earlier name of {current}"):
        asked(TASKS[place[0]], **{earlier: values[0], current: values[1]})


@pytest.mark.parametrize("place", RENAMED)
def test_the_schema_marks_earlier_names(place: tuple[str, str]) -> None:
    properties = TASKS[place[0]].request.model_json_schema()["properties"]
    assert {name for name, field in properties.items() if field.get("deprecated")} == {
        earlier for task, earlier in RENAMED if task == place[0]
    }


@pytest.fixture
def png() -> bytes:
    return encoded(noise(7, 5))


def test_paths_bytes_and_files_are_sent_as_they_are(png: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(png)
    with path.open("rb") as file:
        sent = {images.encode(given) for given in (path, str(path), png, bytearray(png), file)}
    assert sent == {base64.b64encode(png).decode()}


def test_a_pillow_image_keeps_every_pixel(png: bytes) -> None:
    image = Image.open(io.BytesIO(png))
    received = Image.open(io.BytesIO(images.decode(images.encode(image))))
    assert np.array_equal(np.asarray(received), np.asarray(image))


@pytest.mark.parametrize("prefix", ["", "data:image/png;base64,"])
def test_base64_and_data_uris_pass_as_they_are(png: bytes, prefix: str) -> None:
    text = prefix + base64.b64encode(png * 100).decode()
    assert images.encode(text) == text


@pytest.mark.parametrize(
    ("image", "problem"),
    [
        *((name, "no such file") for name in ("boat.png", "boat", "/nowhere/boat.png", "", "a\0b")),
        (Path("/nowhere/none"), "cannot read"),
        (Path("/"), "cannot read"),
        (3, "int is not an image"),
    ],
)
def test_what_is_no_image_is_refused(image: Any, problem: str) -> None:
    with pytest.raises(UnreadableImage, match=problem):
        images.encode(image)


def test_one_image_and_many_are_distinguished(png: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(png)
    image = Image.open(io.BytesIO(png))
    with path.open("rb") as file:
        for one in (png, path, str(path), file, image):
            request = operation(TASK, CaptionResponse, images=one).request
            assert isinstance(request, CaptionRequest)
            assert len(request.images) == 1
    request = operation(TASK, CaptionResponse, images=[png, path]).request
    assert isinstance(request, CaptionRequest)
    assert len(request.images) == 2


def test_any_iterable_stands_for_a_list() -> None:
    made = operation(
        GENERATE,
        GenerateResponse,
        prompts=(text for text in "ab"),
        stop=iter(["\n"]),
        examples=iter([("x", "y")]),
        logit_bias={3: 1.0},
    )
    assert made.request == GENERATE.request(
        prompts=["a", "b"],
        stop=["\n"],
        examples=[Example(input="x", output="y")],
        logit_bias={3: 1.0},
    )
    assert (made.method, made.path, made.response) == ("Generate", "/v1/generate", GenerateResponse)


def test_one_string_stands_for_a_list_of_one() -> None:
    made = operation(ZERO_SHOT, ZeroShotResponse, images=[b"png"], labels="x", templates="a {}")
    fields = made.request.model_dump(exclude_none=True)
    assert fields == {"images": ["cG5n"], "labels": ["x"], "templates": ["a {}"]}


def test_empty_map_is_left_out() -> None:
    made = operation(GENERATE, GenerateResponse, prompts="a", logit_bias={})
    assert made.request == GENERATE.request(prompts=["a"])


@pytest.mark.parametrize("pair", [("a",), ("a", "b", "c"), "abc"])
def test_tuple_of_another_length_is_refused(pair: object) -> None:
    with pytest.raises(InvalidArgument, match=r"examples: expected \(input, output\)"):
        operation(GENERATE, GenerateResponse, prompts="a", examples=[pair])


def test_unknown_field_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="beams"):
        operation(GENERATE, GenerateResponse, prompts="a", beams=4)


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"prompts": ["a", "b\udcff"]}, "prompts.1"),
        ({"prompts": "a", "instruction": "\ud800"}, "instruction"),
        ({"prompts": "a", "examples": [("x", "\udcff")]}, "examples.0.output"),
    ],
)
def test_text_that_no_encoding_can_hold_is_refused(fields: dict, place: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{place}: not valid Unicode text"):
        operation(GENERATE, GenerateResponse, **fields)
