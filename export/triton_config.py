"""`config.pbtxt`: how Triton runs each model. Complete, so that nothing is completed by loading.

Deterministic: the same bundle gives the same bytes on every machine. `docs/operations.md` says what
the values are for; the traps behind them are in the comments here.
"""

from __future__ import annotations

from serving.bundle import Graph, Role, Tensor

THREADS = 2
STATELESS_MAX_BATCH = 64

_TYPES = {
    "float32": "TYPE_FP32",
    "float16": "TYPE_FP16",
    "int64": "TYPE_INT64",
    "int32": "TYPE_INT32",
    "int8": "TYPE_INT8",
    "uint8": "TYPE_UINT8",
    "bool": "TYPE_BOOL",
}

# Without an instance group a CPU model gets two processes; what is queued can be cancelled only
# with dynamic batching. It has no queue policy: with one (size or timeout) the batcher of 24.10
# misses the end of a batch and sleeps for 500 ms (32 translations at once: 2.1 s instead of
# 0.07 s), and timeouts slow it down further by the hour (triton-inference-server/server#8870).
# What waits is bounded by the gateway.
_COMMON = f"""\
instance_group [
  {{
    count: 1
    kind: KIND_CPU
  }}
]
dynamic_batching {{
}}
parameters {{
  key: "intra_op_thread_count"
  value {{
    string_value: "{THREADS}"
  }}
}}
"""


def generator_config(name: str, admit: Graph | None) -> str:
    """A decoupled model of the backend `autoregressive` (`serving/codec.py`).

    Args:
        admit: Its graph of the source; none for decoder-only models.

    Outputs that a request did not ask for are left out of its responses.
    """
    inputs = []
    if admit is not None and admit.input(Role.SOURCE_TOKENS):
        inputs.append(_port("source_ids", "TYPE_INT64", (-1,)))
    pixels = admit and admit.input(Role.PIXELS)
    if pixels:
        inputs.append(_port("pixels", "TYPE_UINT8", pixels.shape[1:]))
    inputs.append(_port("prompt_ids", "TYPE_INT64", (-1,), "optional: true"))
    inputs.append(_port("options", "TYPE_STRING", (1,), "optional: true"))
    outputs = [
        _port("token_ids", "TYPE_INT64", (-1,)),
        _port("sequences", "TYPE_INT64", (-1, -1)),
        _port("scores", "TYPE_FP32", (-1,)),
        _port("finish_reason", "TYPE_STRING", (-1,)),
        _port("log_probs", "TYPE_FP32", (-1, -1)),
        _port("top_ids", "TYPE_INT64", (-1, -1, -1)),
        _port("top_log_probs", "TYPE_FP32", (-1, -1, -1)),
        _port("alignment", "TYPE_FP32", (-1, -1, -1)),
        _port("usage", "TYPE_INT32", (2,)),
    ]
    return _config(name, "autoregressive", 0, inputs, outputs) + (
        "model_transaction_policy {\n  decoupled: true\n}\n"
    )


def stateless_config(name: str, graph: Graph) -> str:
    """A batched graph of the backend `onnxruntime`, the native one or ours."""
    header = f'default_model_filename: "{graph.file}"\n'
    inputs = [_batched(tensor) for tensor in graph.inputs]
    outputs = [_batched(tensor) for tensor in graph.outputs]
    return _config(name, "onnxruntime", STATELESS_MAX_BATCH, inputs, outputs, header)


def _config(
    name: str, backend: str, max_batch: int, inputs: list[str], outputs: list[str], header: str = ""
) -> str:
    ports = ",\n".join
    return (
        f'name: "{name}"\nbackend: "{backend}"\n{header}max_batch_size: {max_batch}\n'
        f"input [\n{ports(inputs)}\n]\noutput [\n{ports(outputs)}\n]\n{_COMMON}"
    )


def _batched(tensor: Tensor) -> str:
    """A port without its batch dimension; Triton wants at least one, so (B,) travels as (B, 1)."""
    dims = tuple(-1 if isinstance(size, str) else size for size in tensor.shape[1:])
    extra = () if dims else ("reshape {\n      shape: [ ]\n    }",)
    return _port(tensor.name, _TYPES[tensor.dtype], dims or (1,), *extra)


def _port(name: str, data_type: str, dims: tuple[int | str, ...], *extra: str) -> str:
    fields = [
        f'name: "{name}"',
        f"data_type: {data_type}",
        f"dims: [ {', '.join(map(str, dims))} ]",
        *extra,
    ]
    return "  {\n    " + "\n    ".join(fields) + "\n  }"
