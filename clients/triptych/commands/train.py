"""`triptych train`: the command line of `export.training`, imported when it is run."""

from __future__ import annotations

import typer

from triptych.commands.lazy_import import forwarded, imported


def train(context: typer.Context) -> int:
    """Train a small model on your own data."""
    return forwarded(imported("export.training.command", "train").app, context)
