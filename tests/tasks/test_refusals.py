"""Each row of `refusals`, over each way."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import BaseModel

from inference.errors import (
    InvalidRequest,
    PayloadTooLarge,
    ServingError,
    TooLong,
    UnknownModel,
    UnsupportedImage,
)
from inference.tasks import TASKS
from tests.serving.gateway.conftest import MakeGateway
from tests.tasks.drivers import DRIVERS, Refused
from tests.tasks.models import RED
from tests.tasks.refusals import GOOD, REFUSALS, UNTYPED, Refusal
from triptych import triptych_pb2 as pb


def name_of(row: Refusal) -> str:
    return f"{row.task} {row.given}"[:60].encode("ascii", "replace").decode()


WAYS = ["in process", "http", "grpc", "http client"]


INVALID = "INVALID_ARGUMENT"
KINDS: dict[type[ServingError], tuple[str, int, str]] = {
    InvalidRequest: ("invalid_request", 422, INVALID),
    TooLong: ("too_long", 422, INVALID),
    UnsupportedImage: ("unsupported_image", 415, INVALID),
    PayloadTooLarge: ("payload_too_large", 413, INVALID),
    UnknownModel: ("unknown_model", 404, "NOT_FOUND"),
}
"""Names and statuses, as clients rely on them."""
OF_FILES = [row for row in REFUSALS if row.field == "images.0" and "stream" not in row.given]
WAYS_OF_ROWS = [
    *((way, row) for row in REFUSALS for way in WAYS),
    *(("multipart", row) for row in OF_FILES),
]


@pytest.mark.parametrize(
    ("way", "row"), WAYS_OF_ROWS, ids=[f"{name_of(row)}-{way}" for way, row in WAYS_OF_ROWS]
)
async def test_the_field_is_named(make_gateway: MakeGateway, way: str, row: Refusal) -> None:
    gateway = make_gateway([row.served()], grpc_port=0, **row.settings)
    with pytest.raises(Refused) as caught:
        await DRIVERS[way](gateway, row.task, row.fields)
    error = caught.value
    assert gateway.inference.calls == []
    if error.kind is None:
        assert way.endswith("client")
        return
    kind, status, rpc_status = KINDS[row.kind]
    assert (error.kind, error.field) == (kind, row.field)
    assert error.status == (rpc_status if way == "grpc" else status)
    assert re.search(row.says, error.message)


def is_of_an_item(row: Refusal) -> bool:
    """Whether the row's one item is wrong, so that another one beside it is not."""
    items = [name for name in TASKS[row.task].declaration.item_fields if name in row.fields]
    if "stream" in row.fields or not items:
        return False
    return row.field == f"{items[0]}.0" and len(row.fields[items[0]]) == 1


OF_ITEMS = [row for row in REFUSALS if is_of_an_item(row)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("row", OF_ITEMS, ids=name_of)
async def test_an_item_fails_in_its_place(
    make_gateway: MakeGateway, way: str, row: Refusal
) -> None:
    name = (row.field or "").split(".")[0]
    gateway = make_gateway([row.served()], grpc_port=0, **row.settings)
    good = {**GOOD[row.task], "images": [RED]}[name]
    fields = {**row.fields, name: [*good, *row.fields[name], *good]}
    response: Any = await DRIVERS[way](gateway, row.task, fields)
    first, bad, last = response.data
    assert [first.index, bad.index, last.index] == [0, 1, 2]
    assert first.error is last.error is None
    assert (bad.error.type, bad.error.field) == (KINDS[row.kind][0], f"{name}.1")
    assert re.search(row.says.replace(f"{name}.0", f"{name}.1"), bad.error.message)
    assert {name for name, value in bad if value} == {"index", "error"}


@pytest.mark.parametrize(("task", "fields", "field"), UNTYPED, ids=map(str, UNTYPED))
async def test_a_value_of_another_type_is_refused(
    make_gateway: MakeGateway, task: str, fields: dict[str, Any], field: str
) -> None:
    """JSON names the field; a protobuf message cannot hold the value."""
    row = Refusal(task, fields, field)
    whole, gateway = row.fields, make_gateway([row.served()])
    for way in ("in process", "http"):
        with pytest.raises(Refused) as caught:
            await DRIVERS[way](gateway, task, Refusal(task, fields, field).fields)
        assert (caught.value.kind, caught.value.field) == ("invalid_request", field)
        assert "hunter2" not in caught.value.message
    message: type[BaseModel] = getattr(pb, TASKS[task].declaration.request.__name__)
    with pytest.raises((TypeError, ValueError)):
        message(**whole)
