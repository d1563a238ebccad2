"""OpenVINO's runtime, one for each process."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import openvino


@cache
def openvino_core() -> openvino.Core:
    """The process's only `Core`, kept until its end; safe to use from several threads.

    The CPU plugin (OpenVINO 2026.4) gives the thread that loads it an alternate stack for signals,
    and unmaps that stack with its `Core`. The second of two that are released restores the stack
    of the first, and the next signal with a handler ends the process by SIGSEGV.
    """
    return openvino.Core()


def run_request(request: openvino.InferRequest, feeds: Mapping[str, Any] | None = None) -> None:
    """Computes the outputs of an infer request.

    With one thread, and on one core it takes no more, `infer` of OpenVINO 2026.4 loses the error of
    a run and returns the previous run's results. `wait` raises it.

    Args:
        feeds: Inputs by name, beside those that are bound; their memory is shared.

    Raises:
        RuntimeError: the model cannot take these inputs.
    """
    request.start_async(dict(feeds or {}), share_inputs=True)
    request.wait()
