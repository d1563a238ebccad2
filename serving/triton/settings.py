"""Settings of a Triton server."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from serving.settings.capacity import CapacitySettings
from serving.triton.devices import ANY_DEVICE, ServedDevice


@dataclass(frozen=True)
class TritonSettings:
    """Frozen settings of one server; two servers in one process are two of these.

    `host` is the address of gRPC and metrics; HTTP has a Unix socket. Ports given as 0 are chosen
    among the free ones when the server starts.
    """

    repository: Path
    host: str = "127.0.0.1"
    grpc_port: int = 0
    metrics_port: int = 0
    program: Path | None = None
    """The `tritonserver` to run; None: the one on PATH, else the one in the PyPI wheel."""
    ready_timeout_s: float = 120.0
    """For the start of the server, and again for the loading of all bundles."""
    stop_timeout_s: float = 30.0
    """How long requests in flight may take to finish after SIGTERM."""
    stuck_after_s: float = 30.0
    """A model without a heartbeat for so long is killed and loaded again, an unresponsive server is
    restarted. Longer than the longest prefill: a busy model is not a dead one."""
    max_dead_stubs: int = 8
    """A dead stub keeps its shared memory until the server stops: restart beyond this many."""
    idle_before_restart_s: float = 60.0
    """With fewer dead stubs, restart after so long without a request."""
    retire_after_s: float = 60.0
    """How long the previous version stays loaded after a switch. Requests that have begun on it in
    Triton finish anyway; this is for those that a gateway has prepared for it and not yet sent, so
    it should not be less than the gateway's `request_timeout`."""
    watch: bool = False
    """Serve new versions as soon as they are published, without a `triptych reload`."""
    state: Path | None = None
    """File that records the served versions; None: `served.json` in the repository."""
    plans: Path | None = None
    """Folder of TensorRT's plans, built where they are missing; None: beside the repository."""
    device: ServedDevice = ANY_DEVICE
    """Devices of bundles that are served, and the card of those for CUDA."""
    otlp_endpoint: str | None = None
    """Base URL of an OpenTelemetry collector. Requests with a trace context are traced, and no
    others: the gateway sends one for sampled traces."""
    capacity: CapacitySettings = field(default_factory=CapacitySettings)
    """Of every generator; fields left None are taken from each model's `config.pbtxt`."""
    max_failed_starts: int = 5
    """In a row, before giving up; a server that was ready is restarted without a limit."""


def program_from_environment() -> Path | None:
    """The `tritonserver` that `$TRITONSERVER` names, if it is set."""
    value = os.environ.get("TRITONSERVER")
    return Path(value) if value else None
