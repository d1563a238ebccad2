"""Operations on stored glossaries, as `operation` has those of the tasks."""

from __future__ import annotations

from collections.abc import Mapping

from triptych.glossaries.messages import (
    Glossary,
    GlossaryInfo,
    GlossaryList,
    GlossaryName,
    ListGlossariesRequest,
)
from triptych.operation import Operation, validate

PATH = "/v1/glossaries"
LIST_GLOSSARIES = Operation(
    "ListGlossaries", PATH, ListGlossariesRequest(), GlossaryList, verb="GET"
)


def put_glossary(
    name: str, terms: Mapping[str, str], source: str | None, target: str | None
) -> Operation[GlossaryInfo]:
    """Stores a glossary.

    Raises:
        InvalidArgument: A name or term breaks its rule.
    """
    glossary = validate(Glossary, name=name, terms=dict(terms), source=source, target=target)
    return Operation("PutGlossary", f"{PATH}/{name}", glossary, GlossaryInfo, verb="PUT")


def get_glossary(name: str) -> Operation[Glossary]:
    """Fetches a glossary.

    Raises:
        InvalidArgument: No such name can exist.
    """
    request = validate(GlossaryName, name=name)
    return Operation("GetGlossary", f"{PATH}/{name}", request, Glossary, verb="GET")


def delete_glossary(name: str) -> Operation[GlossaryInfo]:
    """Deletes a glossary.

    Raises:
        InvalidArgument: No such name can exist.
    """
    request = validate(GlossaryName, name=name)
    return Operation("DeleteGlossary", f"{PATH}/{name}", request, GlossaryInfo, verb="DELETE")
