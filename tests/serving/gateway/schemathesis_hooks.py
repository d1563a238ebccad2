"""Hooks of `schemathesis.toml`."""

import schemathesis


@schemathesis.hook
def filter_case(context: schemathesis.HookContext, case: schemathesis.Case) -> bool:
    """Skip forms with an empty list: it is sent as no field at all, so nothing can refuse it."""
    is_form = case.media_type == "multipart/form-data" and isinstance(case.body, dict)
    return not (is_form and any(value == [] for value in case.body.values()))
