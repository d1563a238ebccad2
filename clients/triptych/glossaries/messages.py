"""Messages of stored glossaries: terms and their renderings, kept by the gateway under a name."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from triptych.messages import ClosedMessage, Message, optional

MAX_TERM_CHARACTERS = 200
MAX_STORED_TERMS = 10_000

Term = Annotated[str, Field(min_length=1, max_length=MAX_TERM_CHARACTERS)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Terms = Annotated[dict[Term, Term], Field(min_length=1, max_length=MAX_STORED_TERMS)]
Language = Annotated[str, Field(min_length=1, max_length=32)]


class GlossaryUpload(ClosedMessage):
    """Body of `PUT /v1/glossaries/{name}`; `name` may be left out, or is that of the path."""

    name: Name | None = None
    terms: Terms
    source: Language | None = None
    target: Language | None = None


class Glossary(Message):
    """A glossary with its terms."""

    name: Name = Field(description="Letters, digits, dots, dashes and underscores.")
    terms: Terms = Field(description="Term of the source to its rendering in the translation.")
    source: Language | None = optional("Language of the terms; that of requests which name none.")
    target: Language | None = optional(
        "Language of the renderings; that of requests which name none."
    )


class GlossaryInfo(Message):
    """A glossary without its terms."""

    name: str
    source: str | None = None
    target: str | None = None
    size: int = Field(description="Number of terms.")
    modified: float = Field(description="When it was put, in seconds since 1970.")


class GlossaryList(Message):
    """Response of `GET /v1/glossaries`, in the order of the names."""

    data: list[GlossaryInfo]


class GlossaryName(Message):
    """Request for one glossary."""

    name: Name


class ListGlossariesRequest(Message):
    """Request for all glossaries of a key."""
