"""Sessions over one ONNX graph that compute the requested outputs and nothing else.

ONNX Runtime runs a whole graph for any of its outputs (`RunOptions.only_execute_path_to_fetches`
does nothing in 1.31). So a request for some of the outputs runs a session of its own, over the
nodes that these outputs need.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort
from cachetools import LRUCache
from numpy.typing import NDArray

from inference.engine.runners.cuda.installation import (
    PROVIDER,
    require_cudnn,
    require_loaded,
    require_provider,
)
from inference.errors import DeviceError
from inference.saturation import EXTERNAL_DATA, open_cpu_session
from inference.stateless.config_check import check_config, element_type
from inference.stateless.sessions import InvalidArgument, text_parameters

if TYPE_CHECKING:
    import onnx


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
    accelerators = optimization.get("execution_accelerators", {})
    # This backend has none; those for a GPU are ignored on the CPU, as natively.
    for accelerator in accelerators.get("cpu_execution_accelerator", ()):
        raise InvalidArgument(f"unknown Execution Accelerator '{accelerator['name']}' is requested")
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


MAX_SESSIONS = 4
"""Each has its own weights, unless they are in external data: the page cache holds those once."""
_CPU = "CPUExecutionProvider"
_ERROR = re.compile(r"\[ONNXRuntimeError\] : (\d+) : \w+ : (.*)", re.DOTALL)

Arrays = Mapping[str, NDArray[Any]]


class GraphSessions:
    """The sessions of one instance. Used by one thread.

    Args:
        config: The model's configuration, as Triton's JSON.
        card: Number of the GPU; None on the CPU.

    Raises:
        InvalidArgument: the graph cannot be loaded, or the configuration contradicts it.
        DeviceError: the card cannot be used.
    """

    def __init__(self, file: Path, config: dict[str, Any], card: int | None = None) -> None:
        if not file.exists():
            raise InvalidArgument(f"unable to find '{file}' for model instance '{config['name']}'")
        self._file = file
        self._config, self._card = config, card
        self._sessions: LRUCache[frozenset[str], Any] = LRUCache(MAX_SESSIONS)
        try:
            whole = self._open(file, session_options(config))
        except (InvalidArgument, DeviceError):
            raise
        except Exception as error:  # ONNX Runtime's errors share no base
            raise InvalidArgument(error_text(error)) from error
        check_config(config, whole)
        self._inputs = whole.get_inputs()
        self._all = frozenset(node.name for node in whole.get_outputs())
        configured = frozenset(entry["name"] for entry in config["output"])
        self._sessions[configured] = whole if configured == self._all else self._cut(configured)

    def run(self, outputs: Collection[str], feed: Arrays) -> dict[str, NDArray[Any]]:
        """The named outputs.

        Raises:
            Exception: of ONNX Runtime, which has no base of its own; `error_text` words it.
        """
        names = frozenset(outputs)
        session = self._sessions.get(names)
        if session is None:
            session = self._sessions[names] = self._cut(names)
        return dict(zip(names, session.run(list(names), dict(feed)), strict=True))

    def warm_up(self) -> None:
        """Run the configured outputs on zeros, so that the first request finds memory and threads.

        Dynamic dimensions become 1.

        Raises:
            DeviceError: a kernel needs cuDNN, which is missing.
            Exception: the graph cannot take such inputs; its first request warms it up instead.
        """
        [(names, session)] = self._sessions.items()
        feed = {
            node.name: np.zeros(
                [n if isinstance(n, int) else 1 for n in node.shape], element_type(node)
            )
            for node in self._inputs
        }
        try:
            session.run(list(names), feed)
        except Exception as error:  # ONNX Runtime's errors share no base
            require_cudnn(error)
            raise

    def error_text(self, error: Exception) -> str:
        """An error of `run` on one line, as the native backend words it."""
        return error_text(error)

    def _cut(self, outputs: frozenset[str]) -> Any:
        import onnx

        model = onnx.load(self._file, load_external_data=False)
        cut_graph(model.graph, outputs)
        options = session_options(self._config)
        options.add_session_config_entry(EXTERNAL_DATA, str(self._file.parent))
        return self._open(model.SerializeToString(), options)

    def _open(self, model: Path | bytes, options: Any) -> Any:
        """A session on the card, if there is one, and not on the CPU instead."""
        if self._card is None:
            return open_cpu_session(model, options)
        require_provider()
        on_card = (PROVIDER, {"device_id": str(self._card), "use_tf32": "0"})
        session = ort.InferenceSession(model, options, providers=[on_card, _CPU])
        require_loaded(session)
        session.disable_fallback()  # else an error of CUDA opens it on the CPU
        return session


def cut_graph(graph: onnx.GraphProto, outputs: Collection[str]) -> None:
    """Remove the nodes and constants that these outputs do not need; the inputs stay."""
    needed, nodes = set(outputs), []
    for node in reversed(graph.node):  # sorted, as ONNX requires: users follow producers
        if needed.intersection(node.output):
            nodes.append(node)
            needed.update(_read_names(node))
    kept = {
        "node": nodes[::-1],
        "output": [value for value in graph.output if value.name in outputs],
        "initializer": [tensor for tensor in graph.initializer if tensor.name in needed],
    }
    for field, entries in kept.items():
        del getattr(graph, field)[:]
        getattr(graph, field).extend(entries)


def _read_names(node: onnx.NodeProto) -> Iterator[str]:
    """Names that a node reads, those that only its subgraphs read included."""
    yield from node.input
    for attribute in node.attribute:
        for subgraph in (attribute.g, *attribute.graphs):
            yield from (value.name for value in subgraph.output)
            for inner in subgraph.node:
                yield from _read_names(inner)


def error_text(error: Exception) -> str:
    """An error of ONNX Runtime on one line, as the native backend words it."""
    found = _ERROR.search(str(error))
    text = f"{found[1]}: {found[2]}" if found else str(error)
    return f"onnx runtime error {' '.join(text.split())}"
