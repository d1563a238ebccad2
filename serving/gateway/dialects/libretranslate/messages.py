"""Requests and responses of LibreTranslate's API; names and meanings are LibreTranslate's."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from serving.documents.archive import MAX_SEGMENTS
from triptych.messages import ClosedMessage
from triptych.parameters import MAX_BEAMS, optional

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
