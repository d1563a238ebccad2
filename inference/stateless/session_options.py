"""Reads a model's configuration as the options of an ONNX Runtime session."""

from __future__ import annotations

from typing import Any

import onnxruntime as ort

from inference.stateless.invalid_argument import InvalidArgument
from inference.stateless.parameters import text_parameters

_LEVELS = {
    -1: ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    1: ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
"""`optimization.graph.level` in the native backend's numbering; 0 is unset."""
_BOOLEANS = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}


def session_options(config: dict[str, Any]) -> Any:
    """Session options with the meaning of the native backend's parameters.

    Beyond those, `session.*` parameters are passed to ONNX Runtime as they are.

    Raises:
        InvalidArgument: a value that the native backend refuses.
    """
    parameters = text_parameters(config)
    options = ort.SessionOptions()
    options.intra_op_num_threads = max(0, _integer(parameters, "intra_op_thread_count"))
    options.inter_op_num_threads = max(0, _integer(parameters, "inter_op_thread_count"))
    options.enable_cpu_mem_arena = _boolean(parameters, "enable_mem_arena")
    options.enable_mem_pattern = _boolean(parameters, "enable_mem_pattern")
    options.execution_mode = _execution_mode(_integer(parameters, "execution_mode"))
    optimization = config.get("optimization", {})
    level = int(optimization.get("graph", {}).get("level", 0))
    if level in _LEVELS:
        options.graph_optimization_level = _LEVELS[level]
    _refuse_accelerators(optimization.get("execution_accelerators", {}))
    for key, value in parameters.items():
        if key.startswith("session."):
            options.add_session_config_entry(key, value)
    for library in config.get("model_operations", {}).get("op_library_filename", ()):
        options.register_custom_ops_library(library)
    return options


def _execution_mode(number: int) -> Any:
    if number not in (0, 1):
        raise InvalidArgument(
            "Invalid configuration value provided. Expected values for execution_mode are 0 or 1 "
            f"but got {number}."
        )
    return ort.ExecutionMode.ORT_PARALLEL if number else ort.ExecutionMode.ORT_SEQUENTIAL


def _refuse_accelerators(accelerators: dict[str, Any]) -> None:
    """This backend has none; those for a GPU are ignored on the CPU, as natively."""
    for accelerator in accelerators.get("cpu_execution_accelerator", ()):
        raise InvalidArgument(f"unknown Execution Accelerator '{accelerator['name']}' is requested")


def _integer(parameters: dict[str, str], name: str) -> int:
    value = parameters.get(name, "0")
    try:
        return int(value)
    except ValueError:
        raise InvalidArgument(f"failed to convert '{value}' to integral number") from None


def _boolean(parameters: dict[str, str], name: str) -> bool:
    value = parameters.get(name, "1")
    if value.lower() not in _BOOLEANS:
        raise InvalidArgument(f"failed to convert '{value}' to boolean")
    return _BOOLEANS[value.lower()]
