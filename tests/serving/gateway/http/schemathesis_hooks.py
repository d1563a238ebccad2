"""Hooks of `schemathesis.toml`."""

from collections.abc import Set

import schemathesis


@schemathesis.hook
def filter_case(context: schemathesis.HookContext, case: schemathesis.Case) -> bool:
    """Skip what a document cannot describe.

    What asks for nothing is left out, also if it has another type or an unknown name
    (`ClosedMessage`). In forms every value is text. A key in the body is a wrong key.
    """
    body = case.body if isinstance(case.body, dict) else {}
    if case.media_type == "multipart/form-data" and case.meta.generation.mode.is_negative:
        return False
    schemas = case.operation.schema.raw_schema["components"]["schemas"].values()
    known = {name for schema in schemas for name in schema.get("properties", ())}
    return body.get("api_key") is None and not _has_empty(body, known)


def _has_empty(value: object, known: Set[str]) -> bool:
    """Whether an object has a field that asks for nothing, at any depth; null may be valid."""
    if isinstance(value, list):
        return any(_has_empty(each, known) for each in value)
    return isinstance(value, dict) and any(
        each in ([], {}) or (each in (None, False) and name not in known) or _has_empty(each, known)
        for name, each in value.items()
    )
