"""Compares `config.pbtxt` with an ONNX graph as Triton's native `onnxruntime` backend does at load.

Rules and wording follow triton-inference-server/onnxruntime_backend (`ValidateInputs`,
`ValidateOutputs`, `CompareDimsSupported`), so that a repository that loads here loads there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from inference.stateless.sessions import InvalidArgument

_TYPES = {
    "TYPE_BOOL": "tensor(bool)",
    "TYPE_UINT8": "tensor(uint8)",
    "TYPE_UINT16": "tensor(uint16)",
    "TYPE_UINT32": "tensor(uint32)",
    "TYPE_UINT64": "tensor(uint64)",
    "TYPE_INT8": "tensor(int8)",
    "TYPE_INT16": "tensor(int16)",
    "TYPE_INT32": "tensor(int32)",
    "TYPE_INT64": "tensor(int64)",
    "TYPE_FP16": "tensor(float16)",
    "TYPE_FP32": "tensor(float)",
    "TYPE_FP64": "tensor(double)",
    "TYPE_STRING": "tensor(string)",
}
"""Triton's data types and ONNX Runtime's names for them."""
_NAMES = {theirs: ours for ours, theirs in _TYPES.items()}
_UNSUPPORTED = ("sequence_batching", "batch_input", "batch_output", "ensemble_scheduling")


def check_config(config: dict[str, Any], session: Any) -> None:
    """Refuses a configuration that the graph contradicts.

    Args:
        config: The model's configuration, as Triton's JSON.
        session: An `InferenceSession` of the whole graph.

    Raises:
        InvalidArgument: the native backend would refuse it too, or this one cannot serve it.
    """
    for feature in _UNSUPPORTED:
        if config.get(feature):
            raise InvalidArgument(
                f"model '{config['name']}': {feature} needs Triton's native onnxruntime backend"
            )
    _check_inputs(config, session)
    _check_outputs(config, session)


def element_type(node: Any) -> Any:
    """The numpy type of a graph's input or output: "tensor(float16)" is float16."""
    name = node.type.removeprefix("tensor(").removesuffix(")")
    return {"float": np.float32, "double": np.float64, "string": np.object_}.get(name, name)


def _check_inputs(config: dict[str, Any], session: Any) -> None:
    model, configured = config["name"], config["input"]
    required = session.get_inputs()
    if len(required) != len(configured):
        raise InvalidArgument(
            f"unable to load model '{model}', configuration expects {len(configured)} inputs, "
            f"model provides {len(required)}"
        )
    nodes = {node.name: node for node in (*required, *session.get_overridable_initializers())}
    for entry in configured:
        name = entry["name"]
        if entry.get("optional") and config["max_batch_size"]:
            raise InvalidArgument(
                f"unable to load model '{model}', optional input '{name}' is not supported for "
                "models that support batching"
            )
        node = find_port("input", entry, nodes)
        _check_type(model, "input", entry, node)
        if entry.get("allow_ragged_batch"):
            _refuse_ragged(model, name, node)
        _check_shape(config, entry, node, is_exact=False)


def _check_outputs(config: dict[str, Any], session: Any) -> None:
    nodes = {node.name: node for node in session.get_outputs()}
    for entry in config["output"]:
        node = find_port("output", entry, nodes)
        _check_type(config["name"], "output", entry, node)
        _check_shape(config, entry, node, is_exact=True)


def find_port(kind: str, entry: dict[str, Any], nodes: Mapping[str, Any]) -> Any:
    """The graph's input or output (`kind`) of an entry of the configuration.

    Raises:
        InvalidArgument: the graph has none of this name.
    """
    if entry["name"] not in nodes:
        raise InvalidArgument(
            f"unexpected inference {kind} '{entry['name']}', "
            f"allowed {kind}s are: {', '.join(sorted(nodes))}"
        )
    return nodes[entry["name"]]


def _check_type(model: str, kind: str, entry: dict[str, Any], node: Any) -> None:
    expected = entry["data_type"]
    if expected not in _TYPES:
        raise InvalidArgument(
            f"unsupported datatype {expected} for {kind} '{entry['name']}' for model '{model}'"
        )
    if _TYPES[expected] != node.type:
        raise InvalidArgument(
            f"unable to load model '{model}', configuration expects datatype {expected} for {kind} "
            f"'{entry['name']}', model provides {_NAMES.get(node.type, node.type)}"
        )


def _refuse_ragged(model: str, name: str, node: Any) -> None:
    """The native backend joins ragged inputs of rank 1 into one flat tensor; this one does not."""
    shape = _shape(node)
    if shape != [-1]:
        raise InvalidArgument(
            f"unable to load model '{model}', configuration expects model provides input with "
            f"shape [-1] for ragged input '{name}', model provides {_text(shape)}"
        )
    raise InvalidArgument(
        f"model '{model}': ragged input '{name}' needs Triton's native onnxruntime backend"
    )


def _check_shape(
    config: dict[str, Any], entry: dict[str, Any], node: Any, *, is_exact: bool
) -> None:
    dims = [int(size) for size in entry.get("reshape", entry).get("shape", entry["dims"])]
    shape, tensor = _shape(node), f"model '{config['name']}', tensor '{entry['name']}'"
    if not config["max_batch_size"]:
        if not _fits(shape or [1] * len(dims), dims, is_exact=is_exact):
            raise InvalidArgument(
                f"{tensor}: the model expects {len(shape)} dimensions (shape {_text(shape)}) but "
                f"the model configuration specifies {len(dims)} dimensions (shape {_text(dims)})"
            )
        return
    if shape[:1] != [-1]:
        raise InvalidArgument(
            f"{tensor}: for the model to support batching the shape should have at least 1 "
            "dimension and the first dimension must be -1; but shape expected by the model is "
            f"{_text(shape)}"
        )
    full = [-1, *dims]
    if not _fits(shape, full, is_exact=is_exact):
        raise InvalidArgument(
            f"{tensor}: the model expects {len(shape)} dimensions (shape {_text(shape)}) but the "
            f"model configuration specifies {len(full)} dimensions (an initial batch dimension "
            "because max_batch_size > 0 followed by the explicit tensor shape, making complete "
            f"shape {_text(full)})"
        )


def _fits(shape: Sequence[int], configured: Sequence[int], *, is_exact: bool) -> bool:
    """Whether the sizes agree; an input that is dynamic in the graph may be fixed by the config."""
    return len(shape) == len(configured) and all(
        theirs == ours or (theirs == -1 and not is_exact)
        for theirs, ours in zip(shape, configured, strict=True)
    )


def _shape(node: Any) -> list[int]:
    return [size if isinstance(size, int) else -1 for size in node.shape]


def _text(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"
