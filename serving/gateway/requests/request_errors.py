"""Faults of messages as the gateway's errors, for every protocol."""

from __future__ import annotations

from pydantic import ValidationError

from inference.errors import InvalidRequest, MalformedBody

_MAPS = {"logit_bias", "glossary", "terms"}


def from_validation(error: ValidationError) -> InvalidRequest:
    """The first fault that a message's schema found; never the user's text."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", "invalid")
        return MalformedBody(f"the body is not JSON: {reason}")
    # Keys of a map are the user's text, so the map is named instead.
    place = first["loc"][:1] if first["loc"] and first["loc"][0] in _MAPS else first["loc"]
    field = ".".join(str(part) for part in place) or None
    value = first.get("input")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    got = f", got {value}" if is_number and abs(value) < 1e15 else ""
    message = first["msg"].removeprefix("Value error, ")
    return InvalidRequest(f"{field or 'the body'}: {message}{got}", field=field)
