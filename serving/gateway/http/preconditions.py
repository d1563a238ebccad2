"""Preconditions of requests: `If-Match` and `If-None-Match` (RFC 9110, section 13)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from starlette.datastructures import Headers

from inference.errors import MalformedBody, PreconditionFailed

_ANY = "*"
_TAG = r'(?:W/)?"[\x21\x23-\x7e\x80-\xff]*"'
CONDITION = rf"^(\*|[ \t,]*({_TAG}[ \t]*(,[ \t,]*|$))+)$"
"""Regular expression of the value of either header."""


def etag(version: str) -> str:
    """The strong entity tag of a version."""
    return f'"{version}"'


@dataclass(frozen=True)
class Preconditions:
    """What a request requires of the version of a resource; None where it requires nothing.

    Attributes:
        match: Tags of which one has to be the resource's, or `*`.
        none_match: Tags of which none may be.
    """

    match: frozenset[str] | None
    none_match: frozenset[str] | None

    def check_match(self, version: str | None) -> None:
        """Refuse a request for another version than its `If-Match` names.

        Args:
            version: None where there is no such resource.

        Raises:
            PreconditionFailed: a weak tag never matches.
        """
        if self.match is not None and not _has(self.match, version):
            raise PreconditionFailed("if-match has no tag of the stored one: read it again")

    def check(self, version: str | None) -> None:
        """Refuse a change.

        Raises:
            PreconditionFailed: either condition does not hold.
        """
        self.check_match(version)
        if self.is_known(version):
            raise PreconditionFailed("if-none-match has the tag of the stored one, or * and one is")

    def is_known(self, version: str | None) -> bool:
        """Whether `If-None-Match` names this version; a weak tag matches too."""
        if self.none_match is None:
            return False
        return _has(frozenset(one.removeprefix("W/") for one in self.none_match), version)


def preconditions(headers: Headers) -> Preconditions:
    """The preconditions of a request.

    Raises:
        MalformedBody: one of them is neither a list of entity tags nor `*`.
    """
    return Preconditions(_tags(headers, "if-match"), _tags(headers, "if-none-match"))


def _tags(headers: Headers, name: str) -> frozenset[str] | None:
    if name not in headers:
        return None
    given = ",".join(headers.getlist(name)).strip(" \t")
    if not re.fullmatch(CONDITION, given):
        raise MalformedBody(f'{name} is a list of entity tags, each in double quotes, or "*"')
    return frozenset(re.findall(rf"{_TAG}|\*", given))


def _has(tags: frozenset[str], version: str | None) -> bool:
    return version is not None and not tags.isdisjoint([etag(version), _ANY])
