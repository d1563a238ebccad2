"""`triptych serve`: `triptych triton` and `triptych gateway` as two child processes."""

from __future__ import annotations

import sys

import typer

from serving.commands.flags import with_flags
from serving.commands.processes import Processes
from serving.ports import free_ports
from serving.settings.command_settings import FrontSettings
from serving.settings.model_settings import ModelSettings, ServeSettings
from triptych import Client, TriptychError
from triptych.errors import InvalidArgument


@with_flags(ServeSettings)
def serve(settings: ServeSettings) -> int:
    """Start Triton and the gateway, and report when they are ready; Ctrl-C stops both.

    \b
    triptych serve
    triptych serve --repository model_repository --http-port 9000 --grpc-port 9001
    triptych serve --max-rows 16 --state-memory 512MiB

    Triton listens on free loopback ports. Flags that are not given are taken from the environment;
    so are the other settings of both (see triptych gateway --help, triptych triton --help).
    """
    if not settings.repository.is_dir():
        raise InvalidArgument(f"no such folder: {settings.repository} (triptych export fills it)")
    front = free_ports(settings.host, {"http": settings.http_port, "grpc": settings.grpc_port})
    back = free_ports("127.0.0.1", {"grpc": 0, "metrics": 0})
    listening = settings.model_copy(update={f"{name}_port": port for name, port in front.items()})
    program = (sys.executable, "-m", "triptych")
    processes = Processes(
        {
            "triton": [
                *(*program, "triton", *settings.arguments(ModelSettings.model_fields)),
                *(f"--{name}-port={port}" for name, port in back.items()),
            ],
            "gateway": [
                *(*program, "gateway", *listening.arguments(FrontSettings.model_fields)),
                *("--triton", f"127.0.0.1:{back['grpc']}"),
                *("--triton-metrics", f"127.0.0.1:{back['metrics']}"),
            ],
        }
    )
    url = f"http://{'127.0.0.1' if settings.host == '0.0.0.0' else settings.host}:{front['http']}"
    return processes.run(lambda: _is_ready(url), lambda: typer.echo(f"ready at {url}"))


def _is_ready(url: str) -> bool:
    try:
        with Client(url, timeout=1) as client:
            return client.ready()
    except TriptychError:
        return False
