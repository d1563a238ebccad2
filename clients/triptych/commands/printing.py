"""Answers on the terminal: results on stdout, an item's error on stderr."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer
from pydantic import BaseModel

if TYPE_CHECKING:
    from triptych.messages import Caption, ItemError, Translation


def print_json(answer: BaseModel) -> None:
    """The answer as JSON, absent fields left out."""
    typer.echo(answer.model_dump_json(indent=2, exclude_none=True))


def print_texts(items: Sequence[Translation | Caption], names: Sequence[str] | None = None) -> int:
    """One text a line, `name<TAB>` before it where there are names, alternatives below it.

    Returns:
        The exit code: 1 when an item failed.
    """
    for item in items:
        name = f"{names[item.index]}\t" if names else ""
        if item.error is None:
            typer.echo(f"{name}{item.text}")
        for alternative in item.alternatives or ():
            typer.echo(f"  {alternative.score:8.4f}  {alternative.text}")
    return report_errors([(item.index, item.error) for item in items], names)


def report_errors(
    errors: Sequence[tuple[int, ItemError | None]], names: Sequence[str] | None = None
) -> int:
    """A line on stderr for each item that failed.

    Returns:
        The exit code: 1 when an item failed.
    """
    failed = [(index, error) for index, error in errors if error is not None]
    for index, error in failed:
        name = names[index] if names else f"item {index + 1}"
        typer.echo(f"triptych: {name}: {error.message}", err=True)
    return 1 if failed else 0
