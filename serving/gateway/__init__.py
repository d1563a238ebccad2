"""The HTTP and gRPC front."""

from serving.settings.gateway_settings import GatewaySettings

__all__ = ["GatewaySettings", "run_gateway"]


def run_gateway(settings: GatewaySettings) -> int:
    """Serve until SIGTERM or SIGINT, then let requests finish and end the process.

    Returns:
        The exit code.
    """
    # Imported here: the supervisor of workers loads none of what they need to serve.
    if settings.workers > 1:
        from serving.gateway.server.supervisor import run_workers

        return run_workers(settings)
    from serving.gateway.server.run_server import run_gateway

    return run_gateway(settings)
