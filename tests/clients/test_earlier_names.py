"""Earlier names of fields: taken wherever the current ones are, and never in their way."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from triptych.fields import fields_of
from triptych.messages import Request
from triptych.task import Task
from triptych.tasks import TASKS

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
