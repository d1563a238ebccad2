"""How pydantic fields become protobuf fields, and committed files that `make proto` writes."""

from __future__ import annotations

import re
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from pydantic import Field, create_model

from codegen.__main__ import LOCK, ROOT, generate
from codegen.pages import with_settings, with_tables
from codegen.protobuf import (
    LockedField,
    LockError,
    ProtoField,
    ProtoMessage,
    check_published,
    lock_text,
    proto_messages,
    proto_text,
    read_lock,
    update_lock,
)
from triptych import Client
from triptych import triptych_pb2 as pb
from triptych.messages import GenerationParameters, Item, Message, Request, Response
from triptych.task import Task
from triptych.tasks import TASKS


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


def task_of(kind: Any) -> Task:
    """A task whose items have one field of a type."""
    item = create_model("OneItem", __base__=Item, field=(kind, ...))
    response = create_model("OneResponse", __base__=Response[item])
    return Task("one", "", OddRequest, response, inputs="images")


@pytest.mark.parametrize("name", ["PartList", "Part"])
def test_two_messages_of_one_name_are_refused(name: str) -> None:
    """`PartList` is that of the rows of `OddItem.grid`."""
    other = create_model(name, __base__=Message, other=(str, ...))
    with pytest.raises(ValueError, match=f"several messages are called {name}$"):
        proto_messages([ODD, task_of(other)])


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (list[list[int]], "field: lists of lists hold numbers, strings or messages"),
        (list[list[bool]], "field: lists of lists hold numbers, strings or messages"),
        (bytes, "field"),
    ],
)
def test_type_without_counterpart_is_refused(kind: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        proto_messages([task_of(kind)])


def test_removed_fields_are_reserved_in_the_text() -> None:
    lock = {"M": {"a": LockedField(1, "string"), "b": LockedField(2, "bool")}}
    message = ProtoMessage("M", (ProtoField("c", "bool", "Whether."),), "A message.")
    text = proto_text([message], [], update_lock(lock, [message]))
    assert 'reserved 1, 2;\n  reserved "a", "b";\n  // Whether.\n  bool c = 3;\n}' in text
    assert "// A message.\nmessage M {" in text


LOCKED = {"M": {"a": LockedField(1, "string"), "b": LockedField(2, "optional int32")}}


def message(**fields: str) -> list[ProtoMessage]:
    return [ProtoMessage("M", tuple(ProtoField(name, type_) for name, type_ in fields.items()))]


def test_committed_lock_has_every_message_and_changes_nothing() -> None:
    lock = read_lock(ROOT / LOCK)
    check_published(lock, pb.DESCRIPTOR)
    assert update_lock(lock, proto_messages(TASKS.values())) == lock
    assert lock_text(lock) == (ROOT / LOCK).read_text(encoding="utf-8")


def test_first_published_numbers_stay() -> None:
    """Some numbers of the first version, written out."""
    fields = pb.GenerateRequest.DESCRIPTOR.fields_by_name
    assert (fields["model"].number, fields["prompts"].number, fields["stream"].number) == (1, 2, 24)
    assert fields["logit_bias"].number == 14
    assert pb.Chunk.DESCRIPTOR.fields_by_name["usage"].number == 6
    assert pb.Model.DESCRIPTOR.fields_by_name["limits"].number == 11


def test_new_field_takes_the_next_number() -> None:
    after = update_lock(LOCKED, message(a="string", c="bool", b="optional int32"))
    assert after["M"]["c"] == LockedField(3, "bool")
    assert {name: after["M"][name] for name in LOCKED["M"]} == LOCKED["M"]


def test_numbers_are_not_filled_in() -> None:
    """A gap may have had a field once; 19,000 to 19,999 belong to protobuf."""
    for last, following in ((7, 8), (18_999, 20_000)):
        lock = {"M": {"a": LockedField(last, "string")}}
        assert update_lock(lock, message(a="string", c="bool"))["M"]["c"].number == following


def test_new_message_is_numbered_from_one() -> None:
    assert update_lock({}, message(x="string", y="bool")) == {
        "M": {"x": LockedField(1, "string"), "y": LockedField(2, "bool")}
    }


def test_removed_field_stays_reserved_and_its_number_is_not_given_again() -> None:
    after = update_lock(LOCKED, message(a="string"))
    assert after["M"]["b"] == LockedField(2, "optional int32", is_removed=True)
    later = update_lock(after, message(a="string", c="bool"))
    assert later["M"]["c"].number == 3
    assert later["M"]["b"].is_removed


def test_removed_message_keeps_its_numbers() -> None:
    after = update_lock(LOCKED, [])
    assert all(field.is_removed for field in after["M"].values())
    with pytest.raises(LockError, match=r"M\.a was removed and its number 1 is reserved"):
        update_lock(after, message(a="string"))


@pytest.mark.parametrize("type_", ["bool", "optional string", "repeated string", "bytes"])
def test_changed_type_is_refused(type_: str) -> None:
    with pytest.raises(LockError, match=r"M\.a is locked as string and cannot become"):
        update_lock(LOCKED, message(a=type_, b="optional int32"))


def test_locked_width_of_an_integer_stands() -> None:
    assert update_lock(LOCKED, message(a="string", b="optional int64")) == LOCKED


def test_number_given_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lock.json"
    twice = {"M": {**LOCKED["M"], "c": LockedField(2, "bool")}}
    path.write_text(lock_text(twice))
    with pytest.raises(LockError, match="M: b and c have the same number 2"):
        read_lock(path)


def test_lock_survives_its_file(tmp_path: Path) -> None:
    lock = update_lock(LOCKED, message(a="string", c="map<int64, double>"))
    path = tmp_path / "lock.json"
    path.write_text(lock_text(lock))
    assert read_lock(path) == lock


def published(
    number: int = 1, type_: int = 9, reserved: tuple[str, int] | None = None
) -> FileDescriptor:
    """A descriptor of message M with the field `a`, and the name and number that it reserves."""
    file = FileDescriptorProto(name="m.proto", syntax="proto3")
    made = file.message_type.add(name="M")
    made.field.add(name="a", number=number, type=type_, label=1)
    if reserved:
        made.reserved_name.append(reserved[0])
        made.reserved_range.add(start=reserved[1], end=reserved[1] + 1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool.FindFileByName(file.name)


@pytest.mark.parametrize(
    ("lock", "changed", "problem"),
    [
        (LOCKED, {"number": 7}, r"M\.a is published as number 7; it cannot become 1"),
        (LOCKED, {"type_": 8}, r"M\.a is published as bool; it cannot become string"),
        ({"M": {}}, {}, r"M\.a = 1 is published, but not in the lock"),
    ],
)
def test_entry_of_the_lock_that_was_edited_or_deleted_is_refused(
    lock: dict[str, dict[str, LockedField]], changed: dict[str, int], problem: str
) -> None:
    check_published(LOCKED, published())
    with pytest.raises(LockError, match=problem):
        check_published(lock, published(**changed))


@pytest.mark.parametrize(
    "entry", [{}, {"b": LockedField(3, "bool", True)}, {"b": LockedField(2, "bool")}]
)
def test_removed_entry_of_the_lock_is_kept(entry: dict[str, LockedField]) -> None:
    file = published(reserved=("b", 2))
    removed = {"a": LOCKED["M"]["a"], "b": LockedField(2, "bool", is_removed=True)}
    check_published({"M": removed}, file)
    with pytest.raises(LockError, match=r"M\.b was removed|number 2 is reserved"):
        check_published({"M": {"a": LOCKED["M"]["a"], **entry}}, file)


def test_every_number_of_the_committed_lock_is_guarded() -> None:
    """Moving any one number of the real lock is noticed."""
    lock = read_lock(ROOT / LOCK)
    for name, fields in lock.items():
        for field, locked in fields.items():
            if locked.is_removed:
                continue
            moved = LockedField(locked.number + 100, locked.type)
            with pytest.raises(LockError, match="it cannot become"):
                check_published({**lock, name: {**fields, field: moved}}, pb.DESCRIPTOR)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("generated")
    generate(output)
    return output


def test_generated_files_are_fresh(fresh: Path) -> None:
    names = [path.relative_to(fresh) for path in fresh.rglob("*") if path.is_file()]
    assert len(names) >= 8
    stale = [
        str(name)
        for name in names
        if (ROOT / name).read_text(encoding="utf-8") != (fresh / name).read_text(encoding="utf-8")
    ]
    assert stale == [], "run `make proto`"


def test_a_field_that_was_required_once_is_still_taken_by_position() -> None:
    labels = signature(Client.detect).parameters["labels"]
    assert (labels.kind, labels.default) == (Parameter.POSITIONAL_OR_KEYWORD, None)


BLOCK = "<!-- fields of {}: made by `make proto` -->\n{}<!-- end of fields -->"


def test_table_replaces_what_stood_in_the_block() -> None:
    page = f"# Title\n\n{BLOCK.format('generate', 'old')}\n\nAfter.\n"
    made = with_tables(page, TASKS)
    assert made.startswith("# Title\n\n<!-- fields of generate")
    assert made.endswith("<!-- end of fields -->\n\nAfter.\n")
    assert "old" not in made
    assert with_tables(made, TASKS) == made


@pytest.mark.parametrize("name", GenerationParameters.model_fields)
def test_every_parameter_has_its_description(name: str) -> None:
    made = with_tables(BLOCK.format("generate", ""), TASKS)
    (row,) = (line for line in made.splitlines() if line.startswith(f"| `{name}` |"))
    assert str(GenerationParameters.model_fields[name].description) in row


@pytest.mark.parametrize(
    "row",
    [
        "| `prompts` | text or list of texts |  | Texts to continue. Required. |",
        "| `examples` | list of `{input, output}` |  | Solved examples, in order. |",
        "| `top_p` | number | above 0, up to 1 |"
        " Nucleus sampling: cumulative probability to keep. |",
        "| `logit_bias` | map of integer to number | -1,000 to 1,000 |"
        " Token id to the number added to its logit. |",
        "| `seed` | integer | at least 0, below 2^63 |"
        " Sampling seed; the same seed gives the same tokens. |",
    ],
)
def test_types_and_ranges_are_readable(row: str) -> None:
    assert row in with_tables(BLOCK.format("generate", ""), TASKS).splitlines()


def test_block_of_an_unknown_task_is_an_error() -> None:
    with pytest.raises(KeyError, match="sing"):
        with_tables(BLOCK.format("sing", ""), TASKS)


@pytest.mark.parametrize("name", ["chat", "caption"])
def test_parameters_that_generate_explains_are_named_once(name: str) -> None:
    rows = with_tables(BLOCK.format(name, ""), TASKS).splitlines()
    (named,) = (row for row in rows if "(generate.md#fields)" in row)
    fields = set(TASKS[name].request.model_fields)
    shared = fields & set(GenerationParameters.model_fields)
    assert shared <= set(re.findall(r"`(\w+)`", named))
    cells = [row.split("|")[1] for row in rows if row.startswith("| `")]
    assert {found for cell in cells for found in re.findall(r"`(\w+)`", cell)} == fields


SETTINGS_BLOCK = "<!-- settings: made by `make proto` -->\nstale text\n<!-- end of settings -->"
PAGE = f"# Title\n\n{SETTINGS_BLOCK}\nAfter.\n"


def test_settings_table_replaces_what_stood_in_the_block() -> None:
    made = with_settings(PAGE)
    assert made.startswith("# Title\n\n<!-- settings")
    assert made.endswith("<!-- end of settings -->\nAfter.\n")
    assert "stale text" not in made
    assert with_settings(made) == made
    assert with_settings("no block") == "no block"


def test_settings_that_several_commands_have_alike_are_one_row() -> None:
    rows = with_settings(PAGE).splitlines()
    (rows_flag,) = (row for row in rows if row.startswith("| `--max-rows` |"))
    assert rows_flag.startswith("| `--max-rows` | serve, triton, batch | `TRIPTYCH_MAX_ROWS` |  | ")
    assert len([row for row in rows if row.startswith("| `--glossaries` |")]) == 2
    assert any(row.startswith("| `--host` | triton |  | `127.0.0.1` |") for row in rows)
    assert any(row.startswith("| `--page` | gateway | `TRIPTYCH_PAGE` | `on` |") for row in rows)
    dialects = "`openai,huggingface,tgi,tei,libretranslate,openinference`"
    assert any(f"| `TRIPTYCH_DIALECTS` | {dialects} |" in row for row in rows)
    assert not any("--program" in row for row in rows)
