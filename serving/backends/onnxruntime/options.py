"""How a model's configuration becomes the options of an ONNX Runtime session."""

from __future__ import annotations

from typing import Any

import onnxruntime as ort

from serving.backends.instance import text_parameters

_LEVELS = {
    -1: ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    1: ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
"""`optimization.graph.level` in the native backend's numbering; 0 is unset."""


def session_options(config: dict[str, Any]) -> Any:
    """Session options that mean what the native backend's parameters mean.

    Beyond those, `session.*` parameters go to ONNX Runtime as they are.
    """
    parameters = text_parameters(config)
    options = ort.SessionOptions()
    options.intra_op_num_threads = int(parameters.get("intra_op_thread_count", 0))
    options.inter_op_num_threads = int(parameters.get("inter_op_thread_count", 0))
    options.enable_cpu_mem_arena = parameters.get("enable_mem_arena", "1") != "0"
    options.enable_mem_pattern = parameters.get("enable_mem_pattern", "1") != "0"
    if int(parameters.get("execution_mode", 0)) == 1:
        options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    level = int(config.get("optimization", {}).get("graph", {}).get("level", 0))
    if level in _LEVELS:
        options.graph_optimization_level = _LEVELS[level]
    for key, value in parameters.items():
        if key.startswith("session."):
            options.add_session_config_entry(key, value)
    return options
