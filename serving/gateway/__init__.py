"""The HTTP and gRPC front."""

from serving.settings.gateway_settings import GatewaySettings
from triptych.garbage import without_collection

__all__ = ["GatewaySettings", "run_gateway"]


def run_gateway(settings: GatewaySettings) -> int:
    """Serve until SIGTERM or SIGINT, then let requests finish and end the process.

    Returns:
        The exit code.
    """
    # Imported here: the supervisor of workers loads none of what they need to serve.
    with without_collection():
        if settings.workers > 1:
            from serving.gateway.server.supervisor import run_workers as run
        else:
            from serving.gateway.server.run_server import run_gateway as run
    return run(settings)
