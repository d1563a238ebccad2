"""Find, start, supervise and heal a Triton server."""

from serving.triton.server import TritonServer
from serving.triton.settings import TritonSettings, program_from_environment
from serving.triton.supervisor import run_triton

__all__ = [
    "TritonServer",
    "TritonSettings",
    "program_from_environment",
    "run_triton",
]
