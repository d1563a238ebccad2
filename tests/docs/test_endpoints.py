"""The pages of the endpoints name what is really there: fields, answers, errors, clients."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from inference import errors
from inference.errors import ModelNotChat, ServingError, SetupError, WrongKey
from tests.docs.snippets import snippets
from triptych.messages import Chunk, Model
from triptych.task import Task
from triptych.tasks import TASKS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "endpoints"
EXPLAINED = {"index", "error"}
"""Fields of every item, explained for all."""
IN_OTHER_FORMS = (WrongKey, ModelNotChat)
"""Errors of other APIs alone."""

tasks = pytest.mark.parametrize("task", TASKS.values(), ids=list(TASKS))


def text_of(name: str) -> str:
    return (FOLDER / f"{name}.md").read_text(encoding="utf-8")


def names(page: str, head: str) -> set[str]:
    """Names in the first column of the table with this head."""
    body = page.partition(f"| {head} |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1] for line in body.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def messages_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [message for part in get_args(annotation) for message in messages_in(part)]


def nested(message: type[BaseModel]) -> set[str]:
    """Fields of the messages in the fields of a message."""
    below = [
        inner for field in message.model_fields.values() for inner in messages_in(field.annotation)
    ]
    return {name for inner in below for name in {*inner.model_fields, *nested(inner)}}


def item_of(task: Task) -> type[BaseModel]:
    (item,) = messages_in(task.response.model_fields["data"].annotation)
    return item


@tasks
def test_fields_of_the_answer_are_those_of_the_task(task: Task) -> None:
    item = item_of(task)
    assert names(text_of(task.name), "in `data`") == set(item.model_fields) - EXPLAINED


@tasks
def test_nested_fields_are_explained(task: Task) -> None:
    page = text_of(task.name)
    if (
        task.response.model_fields["data"].annotation
        == TASKS["generate"].response.model_fields["data"].annotation
    ):
        page += text_of("generate")  # the answers of both are alike
    missing = nested(item_of(task)) - set(re.findall(r"`(\w+)`", page)) - {"type", "message"}
    assert missing - {"field", "is_incomplete"} == set()


@tasks
def test_page_has_every_way_to_call_it(task: Task) -> None:
    page = text_of(task.name)
    code = "\n".join(snippet.code for snippet in snippets(page))
    assert f"localhost:8080{task.path}" in code
    assert f"client.{task.method}(" in code
    assert f"triptych {task.name} " in code
    assert "AsyncClient(" in code or "GrpcClient(" in code
    assert f"gRPC `{task.verb}`" in page
    assert (f"`{task.verb}Stream`" in page) == task.streams
    assert f"<!-- fields of {task.name}: made by `make proto` -->" in page
    for heading in ("Fields", "Limits and errors", "Python", "Command line", "Other clients"):
        assert f"\n## {heading}\n" in page


@tasks
def test_index_lists_the_endpoint(task: Task) -> None:
    rows = [row for row in text_of("README").splitlines() if f"[`{task.path}`]" in row]
    (row,) = rows
    assert f"({task.name}.md)" in row
    assert (row.split("|")[3].strip() == "yes") == task.streams


def test_chunks_and_models_have_their_fields() -> None:
    assert names(text_of("streams"), "in an event") == set(Chunk.model_fields)
    assert names(text_of("models"), "in `data`") == set(Model.model_fields)


def leaves(error: type[ServingError]) -> list[type[ServingError]]:
    return [error, *(leaf for below in error.__subclasses__() for leaf in leaves(below))]


def test_errors_are_those_of_the_tree() -> None:
    declared = {
        (error.wire, str(error.http_status), error.grpc_status)
        for error in leaves(ServingError)
        if error.__module__ == errors.__name__
        and not issubclass(error, (SetupError, *IN_OTHER_FORMS))
        and error is not ServingError
    }
    body = text_of("README").partition("| `type` | HTTP |")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in body.splitlines() if line.startswith("| `")]
    assert {(row[0].strip("`"), row[1], row[2]) for row in rows} == declared
