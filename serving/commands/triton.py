"""`triptych triton`."""

from __future__ import annotations

from typing import Annotated

import typer

from serving.commands.flags import with_flags
from serving.settings.triton_settings import TritonSettings
from serving.triton.supervisor import run_triton


@with_flags(TritonSettings)
def triton(
    settings: TritonSettings,
    *,
    http_port: Annotated[
        int | None, typer.Option(hidden=True, help="Ignored: HTTP has a private socket, no port.")
    ] = None,
) -> int:
    """Start and supervise NVIDIA Triton on a model repository; SIGTERM stops it.

    \b
    triptych triton --repository model_repository

    Flags that are not given are taken from the environment.
    """
    if http_port is not None:
        typer.echo(
            "--http-port is ignored: Triton's HTTP has a private socket (docs/security.md)",
            err=True,
        )
    return run_triton(settings)
