"""`triptych reload` and `triptych rollback`: which versions a running supervisor serves."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from serving.triton.control_socket import send
from serving.triton.version_control import Command, Outcome

WATCH_PERIOD_S = 2.0

Repository = Annotated[
    Path,
    typer.Option(
        envvar="TRIPTYCH_REPOSITORY",
        readable=False,
        help="Model repository of the supervisor, as its own --repository.",
    ),
]
Timeout = Annotated[float, typer.Option(min=0, help="Seconds to wait for models to load.")]


def reload(
    name: Annotated[str | None, typer.Argument(help="Bundle; all of them if left out.")] = None,
    *,
    repository: Repository = Path("model_repository"),
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on serving new versions as they are exported.")
    ] = False,
    timeout: Timeout = 600.0,
) -> int:
    """Serve the newest exported version; running requests finish on the one they began with.

    \b
    triptych reload
    triptych reload my-model
    triptych reload --watch

    Run it where `triptych serve` or `triptych triton` runs. A version that does not load is
    reported, and the old one is still served.
    """
    code = _run(repository, timeout, "reload", name)
    while watch:
        time.sleep(WATCH_PERIOD_S)
        _run(repository, timeout, "refresh", name)
    return code


def rollback(
    name: Annotated[str, typer.Argument(help="Bundle.")],
    *,
    repository: Repository = Path("model_repository"),
    timeout: Timeout = 600.0,
) -> int:
    """Serve the version before the one that is served now, until the next reload.

    \b
    triptych rollback my-model
    """
    return _run(repository, timeout, "rollback", name)


def _run(
    repository: Path,
    timeout_s: float,
    action: Literal["reload", "rollback", "refresh"],
    name: str | None,
) -> int:
    """Run one command and print its outcomes; 1 if one of them is a failure."""
    outcomes = send(repository, Command(action=action, name=name), timeout_s)
    if not outcomes and action == "reload":
        typer.echo(f"nothing to serve: {repository} has no bundle")
    for outcome in outcomes:
        if outcome.problem:
            typer.echo(f"triptych: {_failure(outcome)}", err=True)
        elif action != "refresh" or outcome.before != outcome.after:
            typer.echo(_success(outcome))
    return 1 if any(outcome.problem for outcome in outcomes) else 0


def _success(outcome: Outcome) -> str:
    if outcome.after is None:
        return f"{outcome.name}: removed from the repository, not served any more"
    if outcome.before == outcome.after:
        return f"{outcome.name}: nothing changed, version {outcome.after} is served"
    if outcome.before is None:
        return f"{outcome.name}: version {outcome.after} is served"
    return f"{outcome.name}: version {outcome.after} is served, version {outcome.before} was"


def _failure(outcome: Outcome) -> str:
    served = "" if outcome.after is None else f"; version {outcome.after} is served"
    return f"{outcome.name}: {outcome.problem}{served}"
