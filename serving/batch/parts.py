"""The files of an output: one for each shard, with a row for each row of the input."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel
from pydantic_core import to_json

from serving.batch.job import OutputFormat
from serving.batch.places import Place
from serving.batch.rows import Row
from triptych.errors import InvalidArgument
from triptych.fields import MessageField, fields_of
from triptych.messages import Item
from triptych.task import Task

ROW_FIELDS = {"file": pa.string(), "row": pa.int64(), "hash": pa.string()}
"""What identifies a row, before the columns that are kept and the fields of the answer."""
_POSITION = {"index"}
"""Of an item in its request, which its row has nothing of."""
_SCALARS = {str: pa.string(), bool: pa.bool_(), int: pa.int64(), float: pa.float64()}


@dataclass(frozen=True)
class Parts:
    """The files of an output.

    Attributes:
        folder: Of the output.
        format: Of the files.
        task: Whose items they hold.
        kept: Name → type of each column that is copied; JSON as text where the input has no types.
    """

    folder: Place
    format: OutputFormat
    task: Task
    kept: Mapping[str, pa.DataType]

    def name(self, shard: int) -> str:
        """File name of a shard."""
        return f"part-{shard:06d}.{self.format}"

    def write(self, shard: int, rows: Sequence[Row], items: Sequence[Item]) -> None:
        """Write a shard's file, which appears whole or not at all.

        Raises:
            OSError: it cannot be written.
        """
        pairs = zip(rows, items, strict=True)
        with self.folder.replacing(self.name(shard)) as file:
            if self.format == "jsonl":
                file.write(b"".join([_line(row, item) for row, item in pairs]))
            else:
                table = pa.Table.from_pylist([self._entry(*pair) for pair in pairs], self.schema)
                pq.write_table(table, file, compression="zstd")

    def counts(self, shard: int) -> tuple[int, int] | None:
        """Rows of a shard's file, and those with an error; None where there is no whole file."""
        place = self.folder / self.name(shard)
        try:
            errors = list(self._errors(place))
        except (OSError, ValueError, KeyError, pa.ArrowException):
            return None
        return len(errors), sum(errors)

    @property
    def schema(self) -> pa.Schema:
        """Of Parquet: what identifies a row, kept columns, the fields of the task's items."""
        item = {name: _type(one) for name, one in _item_fields(self.task).items()}
        return pa.schema({**ROW_FIELDS, **self.kept, **item})

    def _entry(self, row: Row, item: Item) -> dict[str, Any]:
        """A row of Parquet."""
        kept = {name: _as_column(row.kept.get(name), kind) for name, kind in self.kept.items()}
        return {**_identity(row), **kept, **item.model_dump(exclude=_POSITION)}

    def _errors(self, place: Place) -> Iterator[bool]:
        """Of each row, whether it has an error."""
        if self.format == "parquet":
            with place.filesystem.open_input_file(place.path) as file:
                column = pq.read_table(file, columns=["error"]).column("error")
            yield from column.is_valid().to_pylist()
            return
        for line in place.read().splitlines():
            yield "error" in json.loads(line)


def check_kept(task: Task, keep: Sequence[str]) -> None:
    """Check that no column that is copied has the name of another field of the output.

    Raises:
        InvalidArgument: one has.
    """
    taken = {*ROW_FIELDS, *_item_fields(task)}
    for name in keep:
        if name in taken:
            raise InvalidArgument(
                f"--keep {name}: the output has a field of that name ({', '.join(sorted(taken))}): "
                "rename the column"
            )


def _item_fields(task: Task) -> dict[str, MessageField]:
    (item,) = get_args(task.response.model_fields["data"].annotation)
    return {name: one for name, one in fields_of(item).items() if name != "index"}


def _type(field: MessageField) -> pa.DataType:
    """The column type of a field; lists of numbers are single precision, as models return them."""
    one = _message(field.type) if field.is_message else _SCALARS[field.type]
    if field.shape != "one" and field.type is float:
        one = pa.float32()
    if field.shape == "map":
        return pa.map_(_SCALARS[field.key], one)
    nested = {"one": one, "list": pa.list_(one), "rows": pa.list_(pa.list_(one))}
    return nested[field.shape]


def _message(message: type[BaseModel]) -> pa.DataType:
    return pa.struct([pa.field(name, _type(one)) for name, one in fields_of(message).items()])


def _as_column(value: Any, kind: pa.DataType) -> Any:
    """A kept value as its column takes it: of JSON lines, other values than text as JSON."""
    if value is None or isinstance(value, str) or kind != pa.string():
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def _identity(row: Row) -> dict[str, Any]:
    return dict(zip(ROW_FIELDS, (row.file, row.number, row.content_hash), strict=True))


def _line(row: Row, item: Item) -> bytes:
    """A row of JSON lines: the item's JSON is the service's, behind what identifies the row."""
    content_hash = row.content_hash
    own = f'{{"file":{_json(row.file)},"row":{row.number},"hash":'
    own += "null" if content_hash is None else f'"{content_hash}"'
    if row.kept:
        own += f",{_ENCODER.encode(row.kept)[1:-1]}"
    answer = to_json(item, exclude_none=True, exclude=_POSITION)
    separator = b"," if len(answer) > 2 else b""
    return b"%b%b%b\n" % (own.encode("utf-8", "replace"), separator, answer[1:])


@functools.lru_cache(maxsize=1)
def _json(name: str) -> str:
    """A file's name, which is that of many rows."""
    return json.dumps(name, ensure_ascii=False)


def _to_json(value: Any) -> Any:
    """Values of Parquet that JSON has no form of: bytes as text, others as they are written."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_to_json)
"""Made once: `json.dumps` makes one a row, which takes longer than to use it."""
