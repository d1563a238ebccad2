"""The HTTP and gRPC front."""

from serving.gateway.server import run_gateway
from serving.settings import GatewaySettings

__all__ = ["GatewaySettings", "run_gateway"]
