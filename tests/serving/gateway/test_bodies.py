"""Form fields to message fields."""

from typing import Annotated

import pytest
from pydantic import BaseModel, Field

from serving.gateway.dialects.bodies import _holds_objects, _is_list, _most_values
from triptych.messages import OneOrMany


class Row(BaseModel):
    text: str


class Form(BaseModel):
    plain: str
    optional: str | None = None
    texts: OneOrMany
    optional_texts: OneOrMany | None = None
    labels: list[str] = Field(max_length=7)
    optional_labels: Annotated[list[str], Field(max_length=7)] | None = None
    bounded: Annotated[str, Field(max_length=7)]
    row: Row | None = None
    rows: list[Row] | None = Field(default=None, max_length=7)
    weights: Annotated[dict[int, float], Field(max_length=7)] | None = None


@pytest.mark.parametrize(
    ("name", "is_list", "most"),
    [
        ("plain", False, 1),
        ("optional", False, 1),
        ("texts", True, 33),
        ("optional_texts", True, 33),
        ("labels", True, 8),
        ("optional_labels", True, 8),
        ("bounded", False, 1),
        ("rows", True, 8),
    ],
)
def test_lists_are_found_however_they_are_annotated(name: str, is_list: bool, most: int) -> None:
    field = Form.model_fields[name]
    assert _is_list(field) is is_list
    assert _most_values(field, 33) == most


def test_fields_of_objects_are_found_however_they_are_annotated() -> None:
    found = {name for name, field in Form.model_fields.items() if _holds_objects(field)}
    assert found == {"row", "rows", "weights"}
