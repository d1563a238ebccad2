"""`triptych glossary`: the glossaries that a gateway stores."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

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

glossary = typer.Typer(
    help="Store, list, show and delete glossaries for translate --glossary-name.",
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(help="Letters, digits, dots, dashes and underscores.")]
Language = Annotated[str | None, typer.Option(help="That of requests which name none.")]


@glossary.command()
def put(
    name: Name,
    file: Annotated[
        Path,
        typer.Argument(
            exists=True, dir_okay=False, help="Terms: .csv, .tsv, .json, or lines `a => b`."
        ),
    ],
    source: Language = None,
    target: Language = None,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    timeout: TimeoutS = DEFAULT_TIMEOUT_S,
) -> None:
    """Store a glossary, or replace the one of that name.

    \b
    triptych glossary put kitchen terms.csv --source es --target en
    triptych translate "El restaurante es caro." --glossary-name kitchen
    """
    from triptych.glossaries.files import read_terms

    terms = read_terms(file)
    with connect(url, api_key, timeout) as client:
        info = client.put_glossary(name, terms, source=source, target=target)
    typer.echo(f"{info.name}: {info.size} terms")


@glossary.command("list")
def list_all(
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    timeout: TimeoutS = DEFAULT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """List the glossaries of this key."""
    from triptych.commands.printing import print_json

    with connect(url, api_key, timeout) as client:
        response = client.glossaries()
    if as_json:
        return print_json(response)
    for one in response.data:
        pair = f"{one.source or 'any'}-{one.target or 'any'}"
        modified = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.modified))
        typer.echo(f"{one.name}  {pair}  {one.size} terms  {modified}")
    return None


@glossary.command()
def show(
    name: Name,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    timeout: TimeoutS = DEFAULT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Print the terms of a glossary, with a tab between term and rendering.

    \b
    triptych glossary show kitchen > kitchen.tsv
    """
    from triptych.commands.printing import print_json

    with connect(url, api_key, timeout) as client:
        response = client.glossary(name)
    if as_json:
        return print_json(response)
    for term, rendering in response.terms.items():
        typer.echo(f"{term}\t{rendering}")
    return None


@glossary.command()
def delete(
    name: Name,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    timeout: TimeoutS = DEFAULT_TIMEOUT_S,
) -> None:
    """Delete a glossary."""
    with connect(url, api_key, timeout) as client:
        info = client.delete_glossary(name)
    typer.echo(f"deleted {info.name}: {info.size} terms")


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
