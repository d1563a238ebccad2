"""OpenVINO's runtime, one for each process, and what it has on this processor."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import openvino
from openvino import opset13 as ops

_INPUTS, _OUTPUTS = 128, 32
_ROWS = (1, 8)
"""A single row has a kernel of its own."""
_SMALL = 1e-3
"""Beside an activation of 1 int8 rounds it to 0."""
INTEGER_PRECISIONS = ("int8", "int4")


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


@cache
def has_bf16() -> bool:
    """Whether OpenVINO computes in bfloat16 here; where not, it computes float32 instead."""
    return "BF16" in openvino_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


@cache
def scales_activations() -> bool:
    """Whether products with integer weights round groups of activations here (D99): computed.

    Without VNNI OpenVINO 2026.4 ignores the option and multiplies float32.
    """
    rows = ops.parameter([-1, _INPUTS], np.float32)
    ones = ops.constant(np.ones((_OUTPUTS, _INPUTS), np.int8))
    scales = ops.constant(np.ones((_OUTPUTS, 1), np.float32))
    weight = ops.multiply(ops.convert(ones, "f32"), scales)
    model = openvino.Model([ops.matmul(rows, weight, False, True)], [rows], "activations")
    options = {
        "INFERENCE_NUM_THREADS": 2,
        "INFERENCE_PRECISION_HINT": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": _INPUTS,
    }
    compiled = openvino_core().compile_model(model, "CPU", options)
    values = np.full((max(_ROWS), _INPUTS), _SMALL, np.float32)
    values[:, 0] = 1
    limit = 1 + _SMALL * _INPUTS / 2
    return all(bool((compiled([values[:rows]])[0] < limit).all()) for rows in _ROWS)


def why_not_here(precision: str, *, is_generator: bool) -> str | None:
    """Why a precision is not what it is elsewhere, and what to export instead; None: it is.

    OpenVINO ignores settings for which it has no kernels. Stateless int8 needs none (D123).
    """
    if precision == "bf16" and not has_bf16():
        return (
            "this processor has no bfloat16, and OpenVINO would compute float32; "
            "export with --precision fp32"
        )
    if is_generator and precision in INTEGER_PRECISIONS and not scales_activations():
        return (
            "this processor has no VNNI, without which OpenVINO rounds no activations to int8; "
            "export with --runtime onnxruntime --precision int8"
        )
    return None
