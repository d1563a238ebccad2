"""The rows of a shard, their requests, and the responses' items to one item a row.

Several rows are one request, as clients send them. A row that fails in it is requested again alone,
so that its error is the one that the gateway would return, whatever the other rows were.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple, cast, get_args

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from inference.errors import InternalError, InvalidRequest, ServingError, UnsupportedImage
from inference.tasks.shared.loaded_model import TaskLimits
from inference.tasks.shared.model_calls import Call, GenerateCall, Outcome, item_error
from inference.tasks.shared.served_task import AnyTask, Plan
from serving.batch.places import Place
from serving.batch.shards import Input, InputFile, Shard
from serving.local_model import LocalModel
from triptych import images
from triptych.errors import one_line
from triptych.messages import Item, Request, Usage
from triptych.task import FRAME_COUNTS, IMAGES

ROW_GROUPS = 2
"""Kept decoded: consecutive shards are of the same row group, which is decoded as a whole."""
_SHORTEST_BASE64 = 36
"""Shorter text is a path, as is text with a dot, which base64 never has."""


class Row(NamedTuple):
    """One row of the input. A tuple, which is made in a third of a frozen dataclass's time.

    Attributes:
        file: Below the input's folder.
        number: In the file, from 0.
        value: A text, the bytes of an image file or of each frame's; or why there is none.
        kept: Columns that are copied to the output.
    """

    file: str
    number: int
    value: str | bytes | tuple[bytes, ...] | ServingError
    kept: Mapping[str, Any] = MappingProxyType({})

    @property
    def content_hash(self) -> str | None:
        """Of the value, in 16 hexadecimal digits; None where there is no value."""
        if isinstance(self.value, ServingError):
            return None
        content = self.value.encode() if isinstance(self.value, str) else self.value
        if isinstance(content, tuple):
            content = b"".join(hashlib.sha256(frame).digest() for frame in content)
        return hashlib.sha256(content).hexdigest()[:16]


@dataclass(frozen=True)
class RowReader:
    """Reads shards of an input.

    Attributes:
        source: The input.
        column: Of Parquet and JSON lines, the one with the texts or images.
        keep: Columns that are copied to the output.
        is_image: Whether the column holds images.
    """

    source: Input
    column: str
    keep: tuple[str, ...]
    is_image: bool

    def rows(self, shard: Shard) -> list[Row]:
        """The rows of a shard, in order.

        Raises:
            OSError: a file of rows cannot be read. An image file that cannot is its row's error.
        """
        files = self.source.files[shard.first_file : shard.last_file + 1]
        if self.source.format == "images":
            return [Row(file.path, 0, _catch(self.source.place(file).read)) for file in files]
        (file,) = files
        read = {"parquet": self._table_rows, "jsonl": self._object_rows, "text": self._line_rows}
        return [
            Row(file.path, shard.first_row + place, value, kept)
            for place, (value, kept) in enumerate(read[self.source.format](file, shard))
        ]

    def _line_rows(self, file: InputFile, shard: Shard) -> Iterator[tuple[Any, dict[str, Any]]]:
        for line in self._lines(file, shard):
            yield _catch(self._line, line, file), {}

    def _object_rows(self, file: InputFile, shard: Shard) -> Iterator[tuple[Any, dict[str, Any]]]:
        for line in self._lines(file, shard):
            entry = _catch(_object, line)
            if isinstance(entry, ServingError):
                yield entry, dict.fromkeys(self.keep)
            else:
                kept = {name: entry.get(name) for name in self.keep}
                yield _catch(self._entry, entry.get(self.column), file), kept

    def _table_rows(self, file: InputFile, shard: Shard) -> Iterator[tuple[Any, dict[str, Any]]]:
        names = tuple(dict.fromkeys((self.column, *self.keep)))
        table = _table(self.source.uri, self.source.place(file).path, names, shard)
        columns = {name: table.column(name).to_pylist() for name in names}
        for number, value in enumerate(columns[self.column]):
            kept = {name: columns[name][number] for name in self.keep}
            yield _catch(self._entry, value, file), kept

    def _lines(self, file: InputFile, shard: Shard) -> Sequence[bytes]:
        place = self.source.place(file)
        with place.filesystem.open_input_file(place.path) as opened:
            opened.seek(shard.offset)
            block: bytes = opened.read(shard.size)
        lines = block.split(b"\n")
        return lines[:-1] if block.endswith(b"\n") else lines

    def _line(self, line: bytes, file: InputFile) -> str | bytes | tuple[bytes, ...]:
        return self._value(_text(line), file)

    def _entry(self, found: Any, file: InputFile) -> str | bytes | tuple[bytes, ...]:
        if found is None:
            raise InvalidRequest(f"the row has no {self.column}")
        return self._value(found, file)

    def _value(self, found: Any, file: InputFile) -> str | bytes | tuple[bytes, ...]:
        """A text, an image's bytes, or those of a list of frames.

        Raises:
            InvalidRequest: none of them, or a list of none.
            UnsupportedImage: base64 that is none.
            OSError: there is no such file.
        """
        if not self.is_image:
            return _check(found, self.column)
        if not isinstance(found, list):
            return self._image(found, file)
        if not found:
            raise InvalidRequest(f"{self.column} is an empty list: give an image at least")
        return tuple(self._image(frame, file) for frame in found)

    def _image(self, found: Any, file: InputFile) -> bytes:
        """An image's bytes: given as they are, in base64, or as a path; raises as `_value`."""
        if isinstance(found, Mapping):  # as Hugging Face's datasets store images
            found = found.get("bytes") or found.get("path")
        if isinstance(found, bytes):
            return found
        text = _check(found, self.column)
        if text.startswith(("http://", "https://")):
            raise InvalidRequest("images are not fetched from a URL: store them, and give paths")
        if text.startswith("data:") or (len(text) >= _SHORTEST_BASE64 and "." not in text):
            try:
                return images.decode(text)
            except ValueError as error:
                raise UnsupportedImage(f"not base64 or a data URI ({error})") from None
        if "://" in text or text.startswith("/"):
            return Place.of(text).read()
        return (self.source.place(file).parent / text).read()


def _catch(read: Callable[..., Any], *arguments: Any) -> Any:
    """What `read` returns, or the error that it raises."""
    try:
        return read(*arguments)
    except ServingError as error:
        return error
    except (OSError, ValueError) as error:  # pyarrow's errors of a path are both
        number = getattr(error, "errno", None)
        reason = os.strerror(number) if number else type(error).__name__
        return UnsupportedImage(f"the image cannot be read: {reason}")


def _check(found: Any, column: str) -> str:
    if not isinstance(found, str):
        raise InvalidRequest(f"{column} is {type(found).__name__}, not text")
    try:
        found.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{column} is not valid Unicode text") from None
    return found


def _text(line: bytes) -> str:
    try:
        return line.decode("utf-8").removesuffix("\r")
    except UnicodeDecodeError:
        raise InvalidRequest("the line is not UTF-8 text") from None


def _object(line: bytes) -> dict[str, Any]:
    try:
        entry = json.loads(_text(line))
    except (ValueError, RecursionError):
        entry = None
    if not isinstance(entry, dict):
        raise InvalidRequest("the line is not a JSON object")
    return entry


def _table(uri: str, path: str, columns: tuple[str, ...], shard: Shard) -> pa.Table:
    """Columns of the rows of a shard in a Parquet file."""
    parts, start, end = [], 0, shard.first_row + shard.rows
    for number, count in enumerate(_row_counts(uri, path)):
        first, last = max(start, shard.first_row), min(start + count, end)
        if first < last:
            group = _row_group(uri, path, columns, number)
            parts.append(group.slice(first - start, last - first))
        start += count
    return pa.concat_tables(parts)


@functools.lru_cache(maxsize=ROW_GROUPS)
def _row_counts(uri: str, path: str) -> tuple[int, ...]:
    """Rows of each row group of a file."""
    with Place.of(uri).filesystem.open_input_file(path) as file:
        metadata = pq.ParquetFile(file).metadata
        groups = range(metadata.num_row_groups)
        return tuple(metadata.row_group(number).num_rows for number in groups)


@functools.lru_cache(maxsize=ROW_GROUPS)
def _row_group(uri: str, path: str, columns: tuple[str, ...], number: int) -> pa.Table:
    with Place.of(uri).filesystem.open_input_file(path) as file:
        return pq.ParquetFile(file).read_row_group(number, columns=list(columns))


SEQUENCES = 32
"""Rows of a request of a generator: they join the engine's batch one by one in any case."""
BATCHED = 256
"""The same of a stateless graph: rows of similar length share a call."""


@dataclass(frozen=True)
class Submitted:
    """A request whose calls run, or why there is none."""

    rows: tuple[int, ...]
    """Their positions in the shard."""
    plan: Plan | ServingError
    futures: tuple[Future[Outcome], ...] = ()


@dataclass(frozen=True)
class RowRequests:
    """Answers rows with a model of this process.

    Attributes:
        local: The model.
        task: What is requested.
        template: A request of the task with one row in the place of all.
        field: The request's field that holds the rows.
        seed: What samples are drawn from, unless the request has a seed.
    """

    local: LocalModel
    task: AnyTask
    template: Request
    field: str
    seed: int
    _submitting: threading.Lock = dataclasses.field(
        default_factory=threading.Lock, repr=False, compare=False
    )
    """Held by one shard at a time, so that shards end one after the other and the engine runs on;
    if their rows mixed in its queue, they would end together and leave it without any."""

    def answers(self, rows: Sequence[Row]) -> tuple[list[Item], Usage]:
        """One item for each row of a shard, in order, and the tokens of all."""
        items: dict[int, Item] = {}
        usages: list[Usage] = []
        valid = []
        for position, row in enumerate(rows):
            if isinstance(row.value, ServingError):
                items[position] = self._fail(row.value)
            else:
                valid.append(position)
        if self.field != IMAGES:  # similar lengths need less padding; the longest begin first
            valid.sort(key=lambda position: -len(cast(str, rows[position].value)))
        size = self._request_rows
        chunks = [tuple(valid[start : start + size]) for start in range(0, len(valid), size)]
        with self._submitting:
            submitted = [self._submit(rows, chunk) for chunk in chunks]
        for one in submitted:
            for position, item in zip(one.rows, self._finish(one, usages), strict=True):
                if item.error is not None and len(one.rows) > 1:
                    (item,) = self._finish(self._submit(rows, (position,)), usages)
                items[position] = item
        return [items[position] for position in range(len(rows))], sum_usage(usages)

    @property
    def _request_rows(self) -> int:
        if self.local.model.manifest.generator is not None:
            return SEQUENCES
        most = self.task.most_items(self.template)
        return BATCHED if most is None else min(BATCHED, most)

    def _submit(self, rows: Sequence[Row], chunk: tuple[int, ...]) -> Submitted:
        """Plan a request of rows and submit its calls."""
        values: list[Any] = [rows[position].value for position in chunk]
        images: list[bytes] = []
        if self.field == IMAGES:
            items = [value if isinstance(value, tuple) else (value,) for value in values]
            images = [image for item in items for image in item]
        limits = TaskLimits(max_client_batch_size=max(BATCHED, len(images)))
        model = replace(self.local.model, task_limits=limits)
        try:
            message = self.template.model_copy(update={self.field: [""] * len(images) or values})
            if len(images) > len(values):
                message = self._with_frames(message, list(map(len, items)))
            plan = self.task.prepare(message, images, model)
        except ServingError as error:
            return Submitted(chunk, error)
        first = rows[chunk[0]]
        calls = [self._seed(call, first, number) for number, call in enumerate(plan.calls)]
        return Submitted(chunk, plan, tuple(self.local.submit(call) for call in calls))

    def _with_frames(self, message: Request, counts: list[int]) -> Request:
        """The request with the number of frames of each item.

        Raises:
            InvalidRequest: the task takes none, or not with its other fields.
        """
        if FRAME_COUNTS not in type(message).model_fields:
            raise InvalidRequest(f"{self.task.name} takes an image a row, not a list of them")
        try:
            return type(message).model_validate({**message.model_dump(), FRAME_COUNTS: counts})
        except ValidationError as error:
            raise InvalidRequest(one_line(error), field=FRAME_COUNTS) from None

    def _seed(self, call: Call, row: Row, number: int) -> Call:
        """The call with a seed of its own, so that a shard which is made again is the same one."""
        if not isinstance(call, GenerateCall) or call.options.seed is not None:
            return call
        place = f"{self.seed} {row.file} {row.number} {number}".encode()
        seed = int.from_bytes(hashlib.sha256(place).digest()[:8]) >> 1
        return replace(call, options=call.options.model_copy(update={"seed": seed}))

    def _finish(self, submitted: Submitted, usages: list[Usage]) -> Iterator[Item]:
        """The items of a request in the order of its rows; waits for its calls."""
        outcomes = [future.result() for future in submitted.futures]
        try:
            if isinstance(submitted.plan, ServingError):
                raise submitted.plan
            plan = submitted.plan
            while (following := plan.following(outcomes)) is not None:
                plan = following
                futures = [self.local.submit(call) for call in plan.calls]
                outcomes = [future.result() for future in futures]
            response = plan.finish(outcomes)
        except ServingError as error:
            return iter([self._fail(error)] * len(submitted.rows))
        if len(response.data) != len(submitted.rows):
            raise InternalError(f"{self.task.name} returned {len(response.data)} items")
        usages.append(response.usage)
        return iter(response.data)

    def _fail(self, error: ServingError) -> Item:
        (item,) = get_args(self.task.declaration.response.model_fields["data"].annotation)
        failed: Item = item(index=0, error=item_error(error))
        return failed


def sum_usage(usages: Sequence[Usage]) -> Usage:
    """The tokens of several requests."""
    return Usage(
        prompt_tokens=sum(one.prompt_tokens for one in usages),
        completion_tokens=sum(one.completion_tokens for one in usages),
    )
