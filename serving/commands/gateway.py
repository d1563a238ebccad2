"""`triptych gateway`."""

from __future__ import annotations

from serving.commands.flags import with_flags
from serving.gateway import run_gateway
from serving.settings.gateway_settings import GatewaySettings


@with_flags(GatewaySettings)
def gateway(settings: GatewaySettings) -> int:
    """Serve HTTP and gRPC in front of a running Triton; SIGTERM stops it.

    \b
    triptych gateway --triton 127.0.0.1:8001 --repository model_repository

    Flags that are not given are taken from the environment.
    """
    return run_gateway(settings)
