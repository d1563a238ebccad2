"""Hooks of `schemathesis.toml`."""

import schemathesis


@schemathesis.hook
def filter_case(context: schemathesis.HookContext, case: schemathesis.Case) -> bool:
    """Skip what a document cannot describe.

    Forms with an empty list are sent as no field at all, so nothing can refuse it. A key in the
    body is checked where there is none in a header, so its status is that of a wrong one.
    """
    body = case.body if isinstance(case.body, dict) else {}
    is_form = case.media_type == "multipart/form-data"
    is_keyed = body.get("api_key") is not None
    return not is_keyed and not (is_form and any(value == [] for value in body.values()))
