"""`triptych catalog`: the table, or JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from export.catalog.entries import Entry, entries

# A pipe has no width of its own, and in 80 columns every name would be broken.
console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
_MIB = 1 << 20


def catalog(
    task: Annotated[
        str | None, typer.Option(help="Only checkpoints for this task, e.g. embed.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON, with the reason where the answer is no.")
    ] = False,
) -> None:
    """Lists well-known checkpoints and whether this version exports them.

    \b
    triptych catalog --task classify
    triptych export NAME            # of the first column, where the hub can be reached

    Memory is that of the weights, computed from the network's shape; KV cache and activations are
    extra. Revisions are commits where this list pins one, else the branch main. Licences are those
    that the checkpoints' authors state; read them before use.
    """
    found = entries(task)
    if as_json:
        typer.echo(
            json.dumps(
                [{**asdict(one), "exported": one.is_exportable} for one in found],
                indent=2,
                ensure_ascii=False,
            )
        )
        return
    if not found:
        typer.echo(f"no checkpoint is listed for {task}", err=True)
        raise typer.Exit(1)
    console.print(_table(found))
    exportable = sum(entry.is_exportable for entry in found)
    console.print(f"{exportable} of {len(found)} can be exported by this version")


def _table(found: list[Entry]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("checkpoint", overflow="fold", min_width=28)
    table.add_column("revision")
    table.add_column("tasks")
    table.add_column("licence")
    for column in ("parameters", "fp32", "int8"):
        table.add_column(column, justify="right")
    table.add_column("exported")
    for entry in found:
        table.add_row(
            entry.name,
            entry.revision[:7],
            ", ".join(entry.tasks),
            entry.licence,
            f"{entry.parameters / 1e6:.0f} M",
            *(f"{entry.memory_bytes[kind] / _MIB:.0f} MiB" for kind in ("fp32", "int8")),
            "yes" if entry.is_exportable else "no",
        )
    return table


if __name__ == "__main__":
    typer.run(catalog)
