"""`triptych compare`: the course's systems in PyTorch, ONNX, int8 and served."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.history import page
from benchmarks.history.columns import measure_group, record
from benchmarks.history.page import tables
from examples.history.system import Group
from examples.history.systems import GROUPS
from inference.errors import SetupError

console = Console(highlight=False)


def compare(
    group: Annotated[
        str | None,
        typer.Argument(help="A group, as --list names it, or how several begin; default: all."),
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="List groups and systems, and measure nothing.")
    ] = False,
    repository: Annotated[
        Path, typer.Option(envvar="TRIPTYCH_REPOSITORY", help="Model repository to export into.")
    ] = Path("model_repository"),
    count: Annotated[int, typer.Option(min=8, help="Held-out items a measure.")] = 200,
    output: Annotated[Path | None, typer.Option(help="Write the figures as JSON.")] = None,
    write: Annotated[
        bool,
        typer.Option(
            "--write", help="Record the figures; write their page in examples/history, and plots."
        ),
    ] = False,
    render: Annotated[
        bool,
        typer.Option("--render", help="Write that page from recorded figures; no measuring."),
    ] = False,
) -> None:
    """Measures the course's systems side by side: quality, size and speed.

    \b
    triptych compare --list
    triptych compare translation
    triptych compare translation --count 400 --write

    Each system is exported if its bundle is missing or stale, and scored on held-out data in
    PyTorch, ONNX, int8 and through a service of its own on free ports. Needs the checkpoints, and
    so a clone of the repository.
    """
    try:
        chosen = _choose(group)
        if write or render:
            _check_plotting()
        if listed:
            console.print(_list(chosen))
        elif render:
            page.write(chosen)
            console.print(f"{page.PAGE} is written")
        else:
            _compare(chosen, repository, count, output, write)
    except (SetupError, OSError) as error:
        Console(stderr=True, highlight=False).print(f"error: {error}", markup=False, soft_wrap=True)
        raise typer.Exit(1) from error


def _choose(name: str | None) -> tuple[Group, ...]:
    """All groups, or one and those whose names continue its name.

    Raises:
        SetupError: There is no such group.
    """
    if name is None:
        return tuple(GROUPS.values())
    found = [group for key, group in GROUPS.items() if f"{key}-".startswith(f"{name}-")]
    if not found:
        raise SetupError(f"there is no group {name!r}; groups are: {', '.join(GROUPS)}")
    return tuple(found)


def _check_plotting() -> None:
    """Before anything is measured.

    Raises:
        SetupError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise SetupError("matplotlib is not installed; plots need pip install 'triptych[dev]'")


def _list(groups: tuple[Group, ...]) -> Table:
    table = Table("group", "year", "system", "checkpoint", box=None)
    for group in groups:
        for one in group.systems:
            table.add_row(group.name, str(one.year), one.title, one.checkpoint)
    return table


def _compare(
    groups: tuple[Group, ...], repository: Path, count: int, output: Path | None, write: bool
) -> None:
    found = {}
    for group in groups:
        found[group.name] = figures = measure_group(group, repository, count, console)
        for title, table in tables(group, figures).items():
            console.print(table.as_rich(f"{group.title}: {title}"))
        if write:
            record(group, figures)
    if output:
        output.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if write:
        page.write(groups)
