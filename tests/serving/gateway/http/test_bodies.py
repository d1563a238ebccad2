"""Form fields to message fields."""

import asyncio
from typing import Annotated

import pytest
from pydantic import BaseModel, Field
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.types import Message

from serving.gateway.http.bodies import _holds_objects, _is_list, _most_values, read_form
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


async def test_form_that_nearly_has_its_boundary_everywhere_does_not_stop_others() -> None:
    file = (
        b'--b\r\ncontent-disposition: form-data; name="images"; filename="a"\r\n\r\n%s\r\n--b--\r\n'
    )
    body = file % (b"\r\n--b-" * 150_000)

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    turns = 0

    async def tick() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    ticking = asyncio.create_task(tick())
    headers = [(b"content-type", b"multipart/form-data; boundary=b")]
    request = Request({"type": "http", "method": "POST", "headers": headers}, receive)
    await request.body()
    async with read_form(request, max_files=1, max_fields=1) as form:
        image = form["images"]
        assert isinstance(image, UploadFile)
        assert await image.read() == b"\r\n--b-" * 150_000
    ticking.cancel()
    assert turns > 50  # one for each piece
