"""`triptych serve`: `triptych triton` and `triptych gateway` as two child processes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from serving.commands.processes import Processes
from serving.commands.shared_flags import Device, OtlpEndpoint, with_capacity_flags
from serving.ports import free_ports
from serving.settings.capacity import CapacitySettings
from serving.triton.devices import ServedDevice
from triptych import Client, TriptychError
from triptych.errors import InvalidArgument

Port = Annotated[int, typer.Option(min=0, max=65535, help="0 takes any free one.")]


@with_capacity_flags
def serve(
    *,
    repository: Annotated[
        Path, typer.Option(readable=False, help="Model repository, as `triptych export` fills it.")
    ] = Path("model_repository"),
    http_port: Port = 8080,
    grpc_port: Port = 8081,
    host: Annotated[str, typer.Option(help="Address that the gateway listens on.")] = "127.0.0.1",
    glossaries: Annotated[
        Path,
        typer.Option(
            envvar="TRIPTYCH_GLOSSARIES",
            help="Folder of the glossaries that clients store; made when the first one is.",
        ),
    ] = Path("glossaries"),
    workers: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="Processes of the gateway (triptych gateway --help)."),
    ] = None,
    watch: Annotated[
        bool,
        typer.Option(envvar="TRIPTYCH_WATCH", help="Serve new versions as they are exported."),
    ] = False,
    device: Device = None,
    otlp_endpoint: OtlpEndpoint = None,
    capacity: CapacitySettings,
) -> int:
    """Start Triton and the gateway, and report when they are ready; Ctrl-C stops both.

    \b
    triptych serve
    triptych serve --repository model_repository --http-port 9000 --grpc-port 9001
    triptych serve --max-rows 16 --state-memory 512MiB

    Triton listens on free loopback ports. Environment variables set the gateway's other flags
    (see triptych gateway --help).
    """
    if not repository.is_dir():
        raise InvalidArgument(f"no such folder: {repository} (triptych export fills it)")
    ServedDevice.of(device)  # or refuses it
    front = free_ports(host, {"http": http_port, "grpc": grpc_port})
    back = free_ports("127.0.0.1", {"grpc": 0, "metrics": 0})
    program = (sys.executable, "-m", "triptych")
    shared = ("--repository", str(repository))
    triton = [f"--{name}-port={port}" for name, port in back.items()]
    triton += ["--watch"] if watch else []
    triton += ["--device", device] if device else []
    limits = [f"--{name.replace('_', '-')}={text}" for name, text in capacity.parameters().items()]
    gateway = [f"--{name}-port={port}" for name, port in front.items()]
    if otlp_endpoint:
        triton.append(f"--otlp-endpoint={otlp_endpoint}")
        gateway.append(f"--otlp-endpoint={otlp_endpoint}")
    gateway += [f"--workers={workers}"] if workers else []
    url = f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{front['http']}"
    processes = Processes(
        {
            "triton": [*program, "triton", *shared, *triton, *limits],
            "gateway": [
                *(*program, "gateway", *shared, "--host", host, *gateway),
                *("--triton", f"127.0.0.1:{back['grpc']}"),
                *("--triton-metrics", f"127.0.0.1:{back['metrics']}"),
                *("--glossaries", str(glossaries)),
            ],
        }
    )
    return processes.run(lambda: _is_ready(url), lambda: typer.echo(f"ready at {url}"))


def _is_ready(url: str) -> bool:
    try:
        with Client(url, timeout=1) as client:
            return client.ready()
    except TriptychError:
        return False
