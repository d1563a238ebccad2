"""Bodies to messages: JSON and multipart, in a content coding or not; vectors to bodies."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar, get_args, get_origin

import orjson
from annotated_types import MaxLen
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import from_json
from starlette.datastructures import FormData
from starlette.formparsers import MultiPartException
from starlette.requests import Request
from starlette.types import Message, Receive

from inference.errors import InvalidRequest, MalformedBody, PayloadTooLarge, UnsupportedMediaType
from inference.tasks.shared.image_inputs import ImageInput
from serving.gateway.requests.service import Service, from_validation
from triptych.task import IMAGES

GZIP, DEFLATE = "gzip", "deflate"
PIECE_BYTES = 65_536
"""Decoded at once: a tenth of a millisecond."""
_GZIP_BITS, _ZLIB_BITS, _RAW_BITS = 31, 15, -15


def decode(receive: Receive, header: str | None, limit: int) -> Receive:
    """`receive` of the decoded body; what it receives is counted by its caller.

    Args:
        header: `Content-Encoding` of the request.
        limit: Of the body as it is sent, in bytes.
    """
    codings = [one for part in (header or "").split(",") if (one := part.strip().lower())]
    codings = [one.removeprefix("x-") for one in codings if one != "identity"]
    if not codings:
        return receive
    if len(codings) > 1 or codings[0] not in (GZIP, DEFLATE):
        return _refuse(", ".join(codings))
    return _Decoder(receive, codings[0], limit).receive


def _refuse(codings: str) -> Receive:
    async def refuse() -> Message:
        named = codings if len(codings) <= 64 and codings.isascii() else "of the request"
        raise UnsupportedMediaType(
            f"the content-encoding {named} is not read: send gzip, deflate or none"
        )

    return refuse


class _Decoder:
    """One body.

    Args:
        receive: Messages with the encoded body.
        coding: gzip, or deflate.
        limit: Of the encoded body, in bytes.
    """

    def __init__(self, receive: Receive, coding: str, limit: int) -> None:
        self._receive = receive
        self._coding = coding
        self._limit = limit
        self._received = 0
        self._rest = b""
        """Received and not decoded yet."""
        self._has_more = True
        self._is_over = False
        self._stream: zlib._Decompress | None = None

    async def receive(self) -> Message:
        """The next piece.

        Raises:
            MalformedBody: not of the coding, or cut.
            PayloadTooLarge: too many encoded bytes.
        """
        if self._is_over:
            return await self._receive()
        while True:
            await asyncio.sleep(0)  # other requests have their turns between pieces
            if self._has_more and len(self._rest) < 2:  # two bytes tell the form of deflate
                message = await self._receive()
                if message["type"] != "http.request":
                    return message
                self._take(message)
                continue
            piece = self._decode()
            self._is_over = not (self._has_more or self._rest or self._is_pending)
            if piece or self._is_over:
                return {"type": "http.request", "body": piece, "more_body": not self._is_over}

    def _take(self, message: Message) -> None:
        part = message.get("body", b"")
        self._received += len(part)
        if self._received > self._limit:
            raise PayloadTooLarge(f"the body has more than {self._limit} bytes: send several")
        self._rest += part
        self._has_more = message.get("more_body", False)

    @property
    def _is_pending(self) -> bool:
        """Whether the stream may hold bytes that it has read and not returned."""
        return self._stream is not None and not self._stream.eof

    def _decode(self) -> bytes:
        if not self._rest and not self._is_pending:
            return b""
        if self._stream is None or self._stream.eof:
            self._stream = zlib.decompressobj(self._bits)
        before = self._rest
        try:
            piece = self._stream.decompress(before, PIECE_BYTES)
        except zlib.error:
            raise MalformedBody(f"the body is not {self._coding}, its content-encoding") from None
        self._rest = self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail
        if self._stream.eof and self._rest and self._coding == DEFLATE:
            raise MalformedBody("the body has bytes behind its end: send one deflate stream")
        if not (piece or self._rest or self._has_more or self._stream.eof):
            raise MalformedBody(f"the body ends before its {self._coding} stream does")
        return piece

    @property
    def _bits(self) -> int:
        """Zlib's parameter: deflate is zlib's form, which some clients leave out."""
        if self._coding == GZIP:
            return _GZIP_BITS
        first = int.from_bytes(self._rest[:2], "big")
        is_zlib = len(self._rest) >= 2 and first >> 8 & 15 == 8 and first % 31 == 0
        return _ZLIB_BITS if is_zlib else _RAW_BITS


M = TypeVar("M", bound=BaseModel)

JSON = "application/json"
MULTIPART = "multipart/form-data"
MAX_VALUES = 200_000
"""Commas and colons of a JSON body, which bound its values: pydantic reports each wrong one, and a
report takes a kilobyte. The texts of a request that is within its limits have fewer."""
_PIECE_BYTES = 4096
"""Of a form, parsed at once: at worst 5 ms."""
_PLACEHOLDER = "file"
"""Stands for an image file in the message."""


async def read_json(request: Request, message: type[M], service: Service) -> M:
    """A JSON body as a message.

    The body is read even when the gateway is full: many clients send all of it before they read.

    Raises:
        MalformedBody: not JSON.
        UnsupportedMediaType: its content type is not that of JSON.
        Overloaded: the gateway is full; the body is not parsed.
        PayloadTooLarge: too many bytes or values.
        InvalidRequest: a field is not valid.
    """
    check_is_json(request)
    body = await request.body()
    service.check()
    return await service.in_pool(len(body), _validate, message, body)


async def read_message(
    request: Request, message: type[M], service: Service
) -> tuple[M, Sequence[ImageInput]]:
    """A message and its images: base64 in JSON, or files beside the other fields.

    Raises:
        MalformedBody: not what its content type says.
        UnsupportedMediaType: neither JSON nor, for a message with images, multipart.
        Overloaded: the gateway is full; the body is not parsed.
        PayloadTooLarge: too many bytes or values.
        InvalidRequest: a field is not valid, or a file in a field other than `images`.
    """
    if IMAGES not in message.model_fields or media_type(request) != MULTIPART:
        parsed = await read_json(request, message, service)
        return parsed, getattr(parsed, IMAGES, None) or ()
    await request.body()
    service.check()
    batch = service.settings.max_client_batch_size + 1  # one more, to report that it is too many
    fields_limit = sum(_most_values(field, batch) for field in message.model_fields.values())
    async with read_form(request, max_files=batch, max_fields=fields_limit) as form:
        parts = form.getlist(IMAGES)
        images = [part if isinstance(part, str) else await part.read() for part in parts]
        fields: dict[str, Any] = dict(_texts(form, message))
    size = sum(map(len, _each_text(fields)))
    if images or message.model_fields[IMAGES].is_required():
        fields[IMAGES] = [_PLACEHOLDER] * len(images)
    return await service.in_pool(size, _from_texts, message, fields), images


@asynccontextmanager
async def read_form(request: Request, max_files: int, max_fields: int) -> AsyncIterator[FormData]:
    """A form in small pieces, between which other requests have their turns.

    A body that nearly has its boundary in every place takes a microsecond a byte to parse.

    Raises:
        MalformedBody: not a form, or of too many fields or files.
    """

    async def receive() -> Message:
        await asyncio.sleep(0)
        try:
            return await anext(pieces)
        except StopAsyncIteration:
            return {"type": "http.request", "body": b"", "more_body": False}

    pieces = _pieces(request)
    whole = Request(request.scope, receive)
    try:
        form = await whole.form(max_files=max_files, max_fields=max_fields)
    except MultiPartException as error:
        raise MalformedBody(f"the body cannot be read: {error.message}") from None
    try:
        yield form
    finally:
        await form.close()


async def _pieces(request: Request) -> AsyncIterator[Message]:
    async for chunk in request.stream():
        for start in range(0, len(chunk), _PIECE_BYTES):
            piece = chunk[start : start + _PIECE_BYTES]
            yield {"type": "http.request", "body": piece, "more_body": True}


def dump_vectors(message: Any, *, exclude_none: bool) -> bytes:
    """JSON as pydantic writes it, of messages whose vectors are arrays of float64."""

    def fields(part: Any) -> dict[str, Any]:
        if not isinstance(part, BaseModel):
            raise TypeError(type(part))
        if not exclude_none:
            return vars(part)
        return {name: value for name, value in vars(part).items() if value is not None}

    return orjson.dumps(message, fields, orjson.OPT_SERIALIZE_NUMPY)


def media_type(request: Request) -> str:
    """The body's content type without parameters; empty if there is none."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def is_json(kind: str) -> bool:
    """Whether a content type is that of JSON."""
    return kind == JSON or (kind.startswith("application/") and kind.endswith("+json"))


def check_is_json(request: Request) -> None:
    """Refuse a body that is not sent as JSON: a page of any site may send one of another type.

    Raises:
        UnsupportedMediaType: it has another content type.
    """
    if not is_json(media_type(request)):
        raise UnsupportedMediaType(
            f"this path takes JSON: send the header content-type: {JSON} (curl -H)"
        )


def _validate(message: type[M], body: bytes) -> M:
    """A JSON body as a message; errors are converted here, off the event loop: they may be many."""
    _check_values(body.count(b",") + body.count(b":"))
    try:
        return message.model_validate_json(body)
    except ValidationError as error:
        raise from_validation(error) from None


def _from_texts(message: type[M], fields: Mapping[str, Any]) -> M:
    """A form as a message: objects are JSON; other fields are text, so "4" is 4: not strict."""
    objects = {
        name: value
        for name, value in fields.items()
        if name in message.model_fields and _holds_objects(message.model_fields[name])
    }
    _check_values(sum(text.count(",") + text.count(":") for text in _each_text(objects)))
    parsed = {name: _parse(name, value) for name, value in objects.items()}
    try:
        return message.model_validate({**fields, **parsed}, strict=False)
    except ValidationError as error:
        raise from_validation(error) from None


def _check_values(count: int) -> None:
    if count > MAX_VALUES:
        raise PayloadTooLarge(
            f"the body has more than {MAX_VALUES} commas and colons: send several requests"
        )


def _parse(name: str, value: str | list[str]) -> Any:
    try:
        return [from_json(one) for one in value] if isinstance(value, list) else from_json(value)
    except ValueError as error:
        raise InvalidRequest(
            f"{name} takes objects, which are JSON in a form: {error}", field=name
        ) from None


def _each_text(fields: Mapping[str, str | list[str]]) -> Iterator[str]:
    for value in fields.values():
        yield from value if isinstance(value, list) else (value,)


def _texts(form: FormData, message: type[BaseModel]) -> dict[str, str | list[str]]:
    """Text fields by name; those of lists may be repeated."""
    fields: dict[str, str | list[str]] = {}
    for name in dict.fromkeys(form.keys()):
        if name == IMAGES:
            continue
        values = [value for value in form.getlist(name) if isinstance(value, str)]
        if len(values) < len(form.getlist(name)):
            raise InvalidRequest(f"{name} is a file: only {IMAGES} are", field=name)
        field = message.model_fields.get(name)
        is_list = field is not None and _is_list(field)
        if len(values) > 1 and not is_list:
            raise InvalidRequest(f"{name} is given {len(values)} times: give it once", field=name)
        fields[name] = values if is_list else values[0]
    return fields


def _is_list(field: FieldInfo) -> bool:
    return any(get_origin(kind) is list for kind in _parts(field.annotation))


def _holds_objects(field: FieldInfo) -> bool:
    """Whether values are objects, or lists of them."""
    parts = list(_parts(field.annotation))
    items = [item for part in parts if get_origin(part) is list for item in get_args(part)]
    return any(
        get_origin(kind) is dict or (isinstance(kind, type) and issubclass(kind, BaseModel))
        for kind in [*parts, *items]
    )


def _most_values(field: FieldInfo, batch: int) -> int:
    """Form fields that a field of the message may take."""
    constraints = [*field.metadata, *_parts(field.annotation)]
    lengths = [item.max_length for item in constraints if isinstance(item, MaxLen)]
    return (lengths[0] + 1 if lengths else batch) if _is_list(field) else 1


def _parts(annotation: Any) -> Iterator[Any]:
    """An annotation and what it is made of, the items of lists excepted."""
    yield annotation
    if isinstance(annotation, FieldInfo):
        yield from annotation.metadata
    elif get_origin(annotation) is not list:
        for part in get_args(annotation):
            yield from _parts(part)
