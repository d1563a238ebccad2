"""OpenVINO's runtime, one for each process."""

from functools import cache

import openvino


@cache
def openvino_core() -> openvino.Core:
    """The process's only `Core`, kept until its end; safe to use from several threads.

    The CPU plugin (OpenVINO 2026.4) gives the thread that loads it an alternate stack for signals,
    and unmaps that stack with its `Core`. The second of two that are released restores the stack
    of the first, and the next signal with a handler ends the process by SIGSEGV.
    """
    return openvino.Core()
