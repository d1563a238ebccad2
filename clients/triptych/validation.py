"""Pydantic's validation errors in one line."""

from __future__ import annotations

from pydantic import ValidationError


def one_line(error: ValidationError) -> str:
    """The first fault as `field.of.field: message`, without the value that was given."""
    place, message = first_fault(error)
    return f"{place}: {message}" if place else message


def first_fault(error: ValidationError) -> tuple[str, str]:
    """Dotted path (empty for the whole) and message of the first fault."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    message = first["msg"].removeprefix("Value error, ")
    return ".".join(str(part) for part in first["loc"]), message
