"""`triptych export`: the command line of `export`, loaded when it is asked for."""

from __future__ import annotations

import typer

from triptych.commands.installed import forwarded, imported


def export(context: typer.Context) -> int:
    """Checkpoints into verified bundles in the model repository."""
    return forwarded(imported("export.cli", "export").export, context)
