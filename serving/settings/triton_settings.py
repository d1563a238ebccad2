"""What `triptych triton` is started with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from serving.settings.command_settings import GracePeriod, JsonOutput, Port
from serving.settings.model_settings import ModelSettings
from serving.settings.served_device import ServedDevice


class TritonSettings(ModelSettings):
    """Settings of one Triton server and of its supervisor; HTTP has a private socket, no port."""

    without_variable: ClassVar[frozenset[str]] = frozenset({"host", "grpc_port", "metrics_port"})
    """The gateway's variables have these names."""

    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="Address of gRPC and metrics; never a public one.",
    )
    grpc_port: Port = Field(default=8001, description="0 takes any free port.")
    metrics_port: Port = Field(default=8002, description="0 takes any free port.")
    program: Path | None = Field(
        default_factory=lambda: os.environ.get("TRITONSERVER") or None, validate_default=True
    )
    """The `tritonserver` to run; None: the one on PATH, else the one in the PyPI wheel."""
    graceful_termination_timeout: GracePeriod = 30.0
    stuck_after: float = Field(
        default=30.0,
        ge=1,
        le=3600,
        allow_inf_nan=False,
        description="Seconds without a heartbeat after which a model, or an unresponsive server, "
        "is restarted; longer than the longest prefill.",
    )
    retire_after: float = Field(
        default=60.0,
        ge=0,
        allow_inf_nan=False,
        description="Seconds that the old version stays loaded after a switch, for requests that a "
        "gateway has prepared for it: not less than its --request-timeout. At least 2.",
    )
    state: Path | None = Field(
        default=None,
        description="File that records the served versions. Default: served.json in the "
        "repository.",
    )
    plans: Path | None = Field(
        default=None,
        description="Folder of TensorRT's plans, built if missing. Default: beside the repository.",
    )
    json_output: JsonOutput = False

    @property
    def served_device(self) -> ServedDevice:
        """The device of the bundles that are served."""
        return ServedDevice.of(self.device)
