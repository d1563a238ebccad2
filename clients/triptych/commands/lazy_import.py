"""Imports of the server and the exporter, which need an extra, when a command runs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType

import typer

from triptych.errors import TriptychError


def imported(module: str, extra: str) -> ModuleType:
    """A module of `serving` or `export`.

    Raises:
        TriptychError: The extra that it needs is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        raise TriptychError(
            f"{missing.name} is not installed; this command needs pip install 'triptych[{extra}]'"
        ) from missing


def forwarded(command: Callable[..., object] | typer.Typer, context: typer.Context) -> int:
    """Run another function, or an app of several, as a command on this command's arguments.

    `--help` included.
    """
    if isinstance(command, typer.Typer):
        app = command
    else:
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command()(command)
    code = typer.main.get_command(app).main(
        list(context.args), prog_name=context.command_path, standalone_mode=False
    )
    return code if isinstance(code, int) else 0
