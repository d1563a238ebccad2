"""`triptych catalog`: the command line of `export.catalog`, imported when it is run."""

from __future__ import annotations

import typer

from triptych.commands.lazy_import import forwarded, imported


def catalog(context: typer.Context) -> int:
    """List well-known checkpoints and whether this version exports them."""
    return forwarded(imported("export.catalog.command", "export").catalog, context)
