"""Messages of LibreTranslate's API, with its names and meanings, and how bodies become them.

Bodies are JSON or forms, with the key in the body or in a header.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import parse_qs

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import from_json
from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from inference.errors import InvalidRequest, MalformedBody, PayloadTooLarge, Unauthorized, WrongKey
from serving.documents.archive import MAX_SEGMENTS
from serving.gateway.admission.admission import FREE_BYTES
from serving.gateway.admission.auth import Keys, bearer
from serving.gateway.http.bodies import JSON, MAX_VALUES, MULTIPART, media_type, read_form
from serving.gateway.requests.service import Service, from_validation
from triptych.messages import MAX_BEAMS, ClosedMessage, optional

MAX_ALTERNATIVES = MAX_BEAMS - 1

Format = Literal["text", "html"]
_Text = Annotated[str, Field(min_length=1)]
Texts = _Text | Annotated[list[str], Field(min_length=1, max_length=MAX_SEGMENTS)]
Code = Annotated[str, Field(min_length=1, max_length=32)]


def _number(value: object) -> object:
    """Numbers of forms are text."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value


_Alternatives = Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES)]
Alternatives = Annotated[_Alternatives, BeforeValidator(_number)]


class Body(ClosedMessage):
    """Base of requests; unknown fields are ignored, as LibreTranslate does."""

    model_config = ConfigDict(extra="ignore")

    defaults = {"format": ("", [], {}), "alternatives": ("", False, [], {})}

    api_key: str | None = optional("The gateway's key; or send Authorization: Bearer KEY.")


class TranslateBody(Body):
    """Body of `POST /translate`."""

    q: Texts
    source: Code = Field(description="auto: the language is identified.")
    target: Code
    format: Format | None = optional("html: only text is translated; tags and attributes stay.")
    alternatives: Alternatives | None = optional("Number of further translations a text.")


class DetectBody(Body):
    """Body of `POST /detect`."""

    q: Texts


class FileBody(Body):
    """Fields of `POST /translate_file`, beside the file."""

    source: Code = Field(description="auto: the language is identified.")
    target: Code


class Answer(BaseModel):
    """Base of responses; names are in camel case outside."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True)


class Detected(Answer):
    """A language, and how likely it is."""

    confidence: float = Field(description="0 to 100.")
    language: str


class Translated(Answer):
    """Body of the response of `/translate`; lists where `q` is one."""

    translated_text: str | list[str]
    detected_language: Detected | list[Detected] | None = None
    alternatives: list[str] | list[list[str]] | None = None


class TranslatedFile(Answer):
    """Body of the response of `/translate_file`."""

    translated_file_url: str = Field(description="Where the file is, for some minutes.")


class Language(Answer):
    """A served language, and what it is translated into."""

    code: str
    name: str
    targets: list[str]


class NamedLanguage(Answer):
    """A language that a page selects at first."""

    code: str
    name: str


class SelectedLanguages(Answer):
    """The languages that a page selects at first."""

    source: NamedLanguage
    target: NamedLanguage


class FrontendSettings(Answer):
    """Body of the response of `/frontend/settings`."""

    api_keys: bool
    char_limit: int = Field(description="-1: none.")
    files_translation: bool
    frontend_timeout: int = Field(description="Milliseconds after the last key press.")
    key_required: bool
    language: SelectedLanguages
    suggestions: bool
    supported_files_format: list[str]


M = TypeVar("M", bound=BaseModel)
Fields = Mapping[str, Any]

FORM = "application/x-www-form-urlencoded"
LIST = "q"
"""The field that a form may repeat."""
_MAX_ESCAPES = 300_000
"""In a form: decoding takes microseconds for each, and there is no key yet."""
_OTHER_FIELDS = 32
"""In a form; unknown ones are ignored."""


@dataclass(frozen=True)
class Upload:
    """A file of a form."""

    field: str
    name: str
    content: bytes


async def read_authorised(
    request: Request, service: Service, keys: Keys
) -> tuple[Fields, Upload | None]:
    """The fields of a body by name, and the file of a multipart form; the key has been checked.

    A body without a key in the header or in one of its first fields is read up to `FREE_BYTES`.

    Raises:
        Unauthorized: there is no key.
        WrongKey: there is none that is right.
        InvalidRequest: the body cannot be read.
        Overloaded: the gateway is full; the body is not parsed.
    """
    authorization = request.headers.get("authorization")
    if not _is_right(keys, bearer(authorization)):
        request = await _keyless(request, keys)
    fields, file = await _read_fields(request, service)
    check_key(authorization, fields, keys)
    return fields, file


def _is_right(keys: Keys, given: str) -> bool:
    try:
        keys.check(given)
    except Unauthorized:
        return False
    return True


async def _keyless(request: Request, keys: Keys) -> Request:
    """The request, once its body is known to be small, or to begin with the key.

    Raises:
        Unauthorized: neither.
    """
    kind = request.headers.get("content-type", "")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > FREE_BYTES and media_type(request) != MULTIPART:
        raise _no_key(request)
    beginning, more = b"", True
    while more and len(beginning) <= FREE_BYTES:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        beginning += message.get("body", b"")
        more = message.get("more_body", False)
    if len(beginning) > FREE_BYTES and not _is_right(keys, _early_key(beginning, kind)):
        raise _no_key(request)
    is_read = False

    async def receive() -> Message:
        nonlocal is_read
        if is_read:
            return await request.receive()
        is_read = True
        return {"type": "http.request", "body": beginning, "more_body": more}

    return Request(request.scope, receive)


def _no_key(request: Request) -> Unauthorized:
    kind = WrongKey if bearer(request.headers.get("authorization")) else Unauthorized
    return kind(
        f"no API key: a body of more than {FREE_BYTES} bytes needs Authorization: Bearer KEY, or "
        "in a form with a file the field api_key before it"
    )


def _early_key(beginning: bytes, content_type: str) -> str:
    """The key of a multipart form of which only the beginning is known; empty if there is none."""
    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary:
        return ""
    for part in (b"\r\n" + beginning).split(b"\r\n--" + boundary)[1:-1]:
        head, _, value = part.partition(b"\r\n\r\n")
        if b'name="api_key"' in head and b"filename" not in head:
            return value.decode("utf-8", "replace")
    return ""


async def _read_fields(request: Request, service: Service) -> tuple[Fields, Upload | None]:
    """The fields of a body by name, and the file of a multipart form.

    Raises:
        MalformedBody: not what its content type says, or of a type that is not read.
        Overloaded: the gateway is full; the body is not parsed.
        PayloadTooLarge: too many bytes or values.
    """
    kind = media_type(request)
    most = service.settings.max_client_batch_size + _OTHER_FIELDS
    if kind == MULTIPART:
        await request.body()
        service.check()
        async with read_form(request, max_files=1, max_fields=most) as form:
            texts = [(name, value) for name, value in form.multi_items() if isinstance(value, str)]
            files = [
                Upload(name, part.filename or "", await part.read())
                for name, part in form.multi_items()
                if isinstance(part, UploadFile)
            ]
        return _gather(texts), files[0] if files else None
    body = await request.body()
    service.check()
    if kind == JSON:
        return await service.in_pool(len(body), _of_json, body), None
    if kind == FORM:
        return await service.in_pool(len(body), _of_form, body, most), None
    raise MalformedBody(f"send {JSON}, {FORM} or {MULTIPART}")


def check_key(authorization: str | None, fields: Fields, keys: Keys) -> None:
    """Check `api_key` of the body, or `Authorization: Bearer KEY`.

    Raises:
        Unauthorized: there is neither.
        WrongKey: neither is right.
    """
    given = (bearer(authorization), str(fields.get("api_key") or ""))
    try:
        keys.check(*given)
    except Unauthorized:
        if any(given):
            raise WrongKey("Invalid API key") from None
        problem = "no API key: send it as api_key, or Authorization: Bearer KEY"
        raise Unauthorized(problem) from None


def validate(message: type[M], fields: Fields) -> M:
    """The fields as a message.

    Raises:
        InvalidRequest: a field is missing or not valid.
    """
    try:
        return message.model_validate(fields)
    except ValidationError as error:
        refusal = from_validation(error)
        name = (refusal.field or "").partition(".")[0]  # without the kind of text: one, or a list
        found = refusal.message.partition(": ")[2]
        raise InvalidRequest(f"{name}: {found}", field=name) from None


def _of_json(body: bytes) -> Fields:
    if body.count(b",") + body.count(b":") > MAX_VALUES:
        raise PayloadTooLarge(
            f"the body has more than {MAX_VALUES} commas and colons: send several requests"
        )
    try:
        fields = from_json(body)
    except ValueError as error:
        raise MalformedBody(f"the body is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise MalformedBody("the body is not a JSON object")
    return fields


def _of_form(body: bytes, most: int) -> Fields:
    if body.count(b"%") > _MAX_ESCAPES:
        raise PayloadTooLarge(f"the form has more than {_MAX_ESCAPES} escaped bytes: send JSON")
    try:
        text = body.decode("utf-8")  # curl's `-d` sends letters as they are
        parsed = parse_qs(
            text, keep_blank_values=True, encoding="utf-8", errors="strict", max_num_fields=most
        )
    except ValueError:
        raise MalformedBody(f"the body is not a form of at most {most} fields in UTF-8") from None
    return _gather([(name, value) for name, values in parsed.items() for value in values])


def _gather(pairs: list[tuple[str, str]]) -> Fields:
    """One value a name, the first one, but all of the texts; lines end as in JSON."""
    fields: dict[str, Any] = {}
    for name, value in pairs:
        plain = value.replace("\r\n", "\n")
        if name == LIST and name in fields:
            before = fields[name]
            fields[name] = [*(before if isinstance(before, list) else [before]), plain]
        else:
            fields.setdefault(name, plain)
    return fields
