"""`triptych triton`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from triptych.commands.installed import imported


def triton(
    repository: Annotated[
        Path, typer.Option(help="Model repository, as `triptych export` fills it.")
    ] = Path("model_repository"),
    host: Annotated[str, typer.Option(help="Address to listen on; never a public one.")] = (
        "127.0.0.1"
    ),
    http_port: Annotated[int, typer.Option(min=0, max=65535)] = 8000,
    grpc_port: Annotated[int, typer.Option(min=0, max=65535)] = 8001,
    metrics_port: Annotated[int, typer.Option(min=0, max=65535)] = 8002,
) -> int:
    """Start NVIDIA Triton on a model repository, watch it and heal it; ends with SIGTERM.

    \b
    triptych triton --repository model_repository
    """
    server = imported("serving.triton", "serve-cpu")
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    code: int = server.run_triton(repository, host, http_port, grpc_port, metrics_port)
    return code
