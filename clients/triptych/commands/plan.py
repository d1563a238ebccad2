"""`triptych plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from triptych.commands.lazy_import import imported


def plan(
    names: Annotated[
        list[str] | None, typer.Argument(help="Bundles; default: all for TensorRT.")
    ] = None,
    *,
    repository: Annotated[
        Path, typer.Option(readable=False, help="Model repository, as `triptych export` fills it.")
    ] = Path("model_repository"),
    plans: Annotated[
        Path | None,
        typer.Option(envvar="TRIPTYCH_PLANS", help="Folder of plans.  [beside the repository]"),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Build plans that fit, too.")] = False,
) -> int:
    """Build the TensorRT plans of newest versions, where they will be served.

    `triptych triton` builds what is missing when it starts; this is for a version that is to be
    reloaded without waiting.

    \b
    triptych plan --repository /models --plans /plans
    """
    command = imported("serving.tensorrt.command", "triton-gpu")
    code: int = command.plan(repository, plans, names or [], again=again, show=typer.echo)
    return code
