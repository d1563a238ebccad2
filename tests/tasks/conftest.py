"""The fixtures of a gateway in this process."""

from tests.serving.gateway.conftest import lent_processes, make_gateway, shared_parts

__all__ = ["lent_processes", "make_gateway", "shared_parts"]
