"""`triptych export`: the command line of `export`, imported when it is run."""

from __future__ import annotations

import typer

from triptych.commands.lazy_import import forwarded, imported


def export(context: typer.Context) -> int:
    """Export checkpoints as verified bundles into the model repository."""
    return forwarded(imported("export.pipeline.cli", "export").export, context)
