"""A stored glossary as requests use it."""

from __future__ import annotations

from dataclasses import dataclass

from inference.processing.terms import TermTable


@dataclass(frozen=True)
class StoredTerms:
    """Terms that are kept under a name.

    Attributes:
        table: The terms.
        source: Their language, where it is given.
        target: Language of the renderings, where it is given.
    """

    table: TermTable
    source: str | None = None
    target: str | None = None
