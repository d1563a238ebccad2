"""`triptych plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from inference.bundle.repository import Repository
from inference.errors import SetupError
from serving.tensorrt.plans import Plans, needs_plan, plan_folder


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
    known = Repository(repository)
    newest = {name: found[0] for name in known.names() if (found := known.complete(name))}
    for name in names or ():
        if name not in newest or not needs_plan(newest[name]):
            ours = ", ".join(each for each in newest if needs_plan(newest[each])) or "none"
            raise SetupError(
                f"{name} is not a bundle for TensorRT in {repository}; those are {ours}"
            )
    wanted = [newest[name] for name in names or ()] or list(filter(needs_plan, newest.values()))
    if not wanted:
        typer.echo(f"{repository} has no bundle for TensorRT: triptych export --runtime tensorrt")
    folder, failed = plan_folder(repository, plans), False
    for bundle in wanted:
        try:
            for model, path in Plans(folder, typer.echo).ready(bundle, again=again).items():
                typer.echo(f"{model} version {bundle.version}: {path}")
        except SetupError as error:
            failed = True
            typer.echo(f"error: {error}")
    return int(failed)
