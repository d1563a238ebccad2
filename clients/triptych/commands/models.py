"""`triptych models`."""

from __future__ import annotations

import typer

from triptych.commands.options import (
    DEFAULT_TIMEOUT_S,
    DEFAULT_URL,
    ApiKey,
    AsJson,
    TimeoutS,
    Url,
    connect,
)


def models(
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    timeout: TimeoutS = DEFAULT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """List the models of a gateway: name, version, tasks, languages, precision.

    \b
    triptych models
    triptych models --url http://10.0.0.5:8080 --json
    """
    from triptych.commands.printing import print_json

    with connect(url, api_key, timeout) as client:
        response = client.models()
    if as_json:
        return print_json(response)
    rows = [("model", "version", "tasks", "languages", "precision")]
    for model in response.data:
        pairs = ", ".join("-".join(pair) for pair in model.languages)
        if model.language_codes:
            pairs = f"{len(model.language_codes)} languages"
        name = f"{model.id} *" if model.default else model.id
        rows.append((name, str(model.version), ", ".join(model.tasks), pairs, model.precision))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())
    for refused in response.refused:
        typer.echo(
            f"not served: {refused.id} version {refused.version}: {refused.reason}", err=True
        )
    return None
