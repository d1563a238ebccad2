"""`triptych triton`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from serving.commands.shared_flags import Device, OtlpEndpoint, with_capacity_flags
from serving.settings.capacity import CapacitySettings
from serving.triton.devices import ServedDevice
from serving.triton.settings import TritonSettings, program_from_environment
from serving.triton.supervisor import run_triton


@with_capacity_flags
def triton(
    *,
    repository: Annotated[
        Path, typer.Option(readable=False, help="Model repository, as `triptych export` fills it.")
    ] = Path("model_repository"),
    host: Annotated[
        str, typer.Option(help="Address of gRPC and metrics; never a public one.")
    ] = "127.0.0.1",
    http_port: Annotated[
        int | None, typer.Option(hidden=True, help="Ignored: HTTP has a private socket, no port.")
    ] = None,
    grpc_port: Annotated[int, typer.Option(min=0, max=65535)] = 8001,
    metrics_port: Annotated[int, typer.Option(min=0, max=65535)] = 8002,
    graceful_termination_timeout: Annotated[
        float,
        typer.Option(
            min=0,
            max=3600,
            envvar="TRIPTYCH_GRACEFUL_TERMINATION_TIMEOUT",
            help="Seconds that running requests get after SIGTERM; a second SIGTERM ends them.",
        ),
    ] = 30.0,
    stuck_after: Annotated[
        float,
        typer.Option(
            min=1,
            max=3600,
            envvar="TRIPTYCH_STUCK_AFTER",
            help="Seconds without a heartbeat after which a model is restarted.",
        ),
    ] = 30.0,
    watch: Annotated[
        bool,
        typer.Option(envvar="TRIPTYCH_WATCH", help="Serve new versions as they are exported."),
    ] = False,
    retire_after: Annotated[
        float,
        typer.Option(
            min=0,
            envvar="TRIPTYCH_RETIRE_AFTER",
            help="Seconds that the old version stays loaded after a switch.",
        ),
    ] = 60.0,
    state: Annotated[
        Path | None,
        typer.Option(
            envvar="TRIPTYCH_STATE",
            help="File that records the served versions.  [served.json in the repository]",
        ),
    ] = None,
    plans: Annotated[
        Path | None,
        typer.Option(
            envvar="TRIPTYCH_PLANS",
            help="Folder of TensorRT's plans, built if missing.  [beside the repository]",
        ),
    ] = None,
    device: Device = None,
    otlp_endpoint: OtlpEndpoint = None,
    json_output: Annotated[
        bool, typer.Option(envvar="TRIPTYCH_JSON_OUTPUT", help="Log lines as JSON.")
    ] = False,
    capacity: CapacitySettings,
) -> int:
    """Start and supervise NVIDIA Triton on a model repository; SIGTERM stops it.

    \b
    triptych triton --repository model_repository
    """
    if http_port is not None:
        typer.echo(
            "--http-port is ignored: Triton's HTTP has a private socket (docs/security.md)",
            err=True,
        )
    settings = TritonSettings(
        repository=repository,
        host=host,
        grpc_port=grpc_port,
        metrics_port=metrics_port,
        program=program_from_environment(),
        stop_timeout_s=graceful_termination_timeout,
        stuck_after_s=stuck_after,
        watch=watch,
        retire_after_s=retire_after,
        state=state,
        plans=plans,
        device=ServedDevice.of(device),
        otlp_endpoint=otlp_endpoint,
        capacity=capacity,
    )
    return run_triton(settings, json_output=json_output)
