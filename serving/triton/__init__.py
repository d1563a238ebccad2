"""Find, start, supervise and heal a Triton server."""

from serving.settings.triton_settings import TritonSettings
from serving.triton.server import TritonServer
from serving.triton.supervisor import run_triton

__all__ = [
    "TritonServer",
    "TritonSettings",
    "run_triton",
]
