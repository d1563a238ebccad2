"""`triptych verify`: the command line of `export.report`, imported when it is run."""

from __future__ import annotations

import typer

from triptych.commands.lazy_import import forwarded, imported


def verify(context: typer.Context) -> int:
    """Repeat the gate on a published bundle and write a report with plots."""
    return forwarded(imported("export.report.command", "export").verify, context)
