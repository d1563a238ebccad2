"""What a Triton server is started with."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from serving.capacity import CapacitySettings


@dataclass(frozen=True)
class TritonSettings:
    """Frozen settings of one server; two servers in one process are two of these.

    Ports given as 0 are chosen among the free ones when the server starts.
    """

    repository: Path
    host: str = "127.0.0.1"
    http_port: int = 0
    grpc_port: int = 0
    metrics_port: int = 0
    program: Path | None = None
    """The `tritonserver` to run; None: the one on PATH, else the one in the PyPI wheel."""
    ready_timeout_s: float = 120.0
    """For the start of the server, and again for the loading of all bundles."""
    stop_timeout_s: float = 30.0
    """How long requests in flight may take to finish after SIGTERM."""
    stuck_after_s: float = 30.0
    """A model whose heart stands still so long is killed and loaded again, a server that does not
    answer is restarted. More than the longest prefill takes, for busy is not dead."""
    max_dead_stubs: int = 8
    """A dead stub keeps its shared memory until the server stops: restart beyond this many."""
    idle_before_restart_s: float = 60.0
    """With fewer dead stubs, restart once nobody has asked for anything for so long."""
    capacity: CapacitySettings = field(default_factory=CapacitySettings)
    """Of every generator; what it leaves open is each model's `config.pbtxt`'s to say."""
    max_restarts: int = 5
    """Restarts without a healthy minute between them before we give up."""


def program_from_environment() -> Path | None:
    """The `tritonserver` that `$TRITONSERVER` names, if it is set."""
    value = os.environ.get("TRITONSERVER")
    return Path(value) if value else None
