"""`config.pbtxt`: how Triton runs each model. Complete, so that Triton completes nothing at load.

Built as Triton's own protobuf message and printed in its text format. Deterministic: the same
bundle gives the same bytes on every machine. `docs/operations.md` describes the values; the traps
behind them are in the comments here.
"""

from __future__ import annotations

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from inference.bundle.manifest import Graph, Placement, Role, Tensor
from inference.engine import codec
from inference.tasks.shared.model_calls import MAX_ROWS

THREADS = 2
"""Intra-op threads of a session on the CPU."""
DEVICE_THREADS = 1
"""The same where another device computes and the host only launches kernels."""

BACKENDS = {
    "onnxruntime": "onnxruntime",  # the native one or ours
    "openvino": "triptych_openvino",
    "tensorrt": "tensorrt",  # the native one
}
"""Runtime of a manifest → Triton's backend."""
PLAN = "model.plan"
"""What a plan is called beside its graph; the supervisor gives Triton the path of a built one."""

_TYPES = {
    "float32": pb.TYPE_FP32,
    "float16": pb.TYPE_FP16,
    "bfloat16": pb.TYPE_BF16,
    "int64": pb.TYPE_INT64,
    "int32": pb.TYPE_INT32,
    "int8": pb.TYPE_INT8,
    "uint8": pb.TYPE_UINT8,
    "bool": pb.TYPE_BOOL,
}
_GENERATED = (  # outputs of every generator: name, type, dimensions
    (codec.TOKEN_IDS, pb.TYPE_INT64, (-1,)),
    (codec.SEQUENCES, pb.TYPE_INT64, (-1, -1)),
    (codec.SCORES, pb.TYPE_FP32, (-1,)),
    (codec.FINISH_REASON, pb.TYPE_STRING, (-1,)),
    (codec.LOG_PROBS, pb.TYPE_FP32, (-1, -1)),
    (codec.TOP_IDS, pb.TYPE_INT64, (-1, -1, -1)),
    (codec.TOP_LOG_PROBS, pb.TYPE_FP32, (-1, -1, -1)),
    (codec.ALIGNMENT, pb.TYPE_FP32, (-1, -1, -1)),
    (codec.USAGE, pb.TYPE_INT32, (2,)),
)


def generator_config(name: str, admit: Graph | None, device: str = "cpu") -> str:
    """A decoupled model of the backend `autoregressive` (`inference/engine/codec.py`).

    Outputs that a request did not ask for are left out of its responses.

    Args:
        admit: The graph of its source; None for decoder-only models.
        device: `cpu` or `cuda:N`.
    """
    config = _config(name, "autoregressive", max_batch=0, device=device)
    if admit is not None and admit.input(Role.SOURCE_TOKENS):
        config.input.add(name=codec.SOURCE_IDS, data_type=pb.TYPE_INT64, dims=[-1])
    pixels = admit and admit.input(Role.PIXELS)
    if pixels:
        sizes = pixels.shape if pixels.shape[0] == "I" else pixels.shape[1:]
        has_many = isinstance(sizes[0], str)
        shape = [-1 if isinstance(size, str) else size for size in sizes]
        config.input.add(
            name=codec.PIXELS, data_type=_TYPES[pixels.dtype], dims=shape, optional=has_many
        )
        if "height" in pixels.shape:
            config.input.add(
                name=codec.IMAGE_SIZES, data_type=pb.TYPE_INT64, dims=[-1, 2], optional=True
            )
    config.input.add(name=codec.PROMPT_IDS, data_type=pb.TYPE_INT64, dims=[-1], optional=True)
    config.input.add(name=codec.OPTIONS, data_type=pb.TYPE_STRING, dims=[1], optional=True)
    for output, data_type, dims in _GENERATED:
        config.output.add(name=output, data_type=data_type, dims=dims)
    config.model_transaction_policy.decoupled = True
    return text_format.MessageToString(config)


def stateless_config(
    name: str,
    graph: Graph,
    device: str = "cpu",
    *,
    runtime: str = "onnxruntime",
    precision: str = "fp32",
    placement: Placement | None = None,
) -> str:
    """A batched graph of one of the backends in `BACKENDS`.

    Args:
        precision: The manifest's; of OpenVINO, also how what is not int8 is computed.
        placement: The manifest's, for the CPU; by default one instance with `THREADS`.
    """
    # The batcher may join the rows of the largest profile.
    largest = (shapes[2][0] for each in graph.profiles for shapes in each.shapes.values())
    rows = max(largest, default=MAX_ROWS)
    config = _config(name, BACKENDS[runtime], max_batch=rows, device=device)
    if runtime == "openvino":
        # What is not int8 is float32 (D123): not every processor has bf16.
        inference = "bf16" if precision == "bf16" else "f32"
        config.parameters["inference_precision"].string_value = inference
    if placement is not None and device == "cpu":
        config.instance_group[0].count = placement.instances
        config.parameters["intra_op_thread_count"].string_value = str(placement.threads)
    config.default_model_filename = graph.file
    if runtime == "tensorrt":
        del config.parameters["intra_op_thread_count"]
        config.default_model_filename = PLAN
        # Without names Triton would use the first profile alone.
        config.instance_group[0].profile.extend(str(index) for index in range(len(graph.profiles)))
    for ports, tensors in ((config.input, graph.inputs), (config.output, graph.outputs)):
        for tensor in tensors:
            _add_batched(ports.add(), tensor)
    return text_format.MessageToString(config)


def _config(name: str, backend: str, max_batch: int, device: str) -> pb.ModelConfig:
    """What the configurations of all models have."""
    config = pb.ModelConfig(name=name, backend=backend, max_batch_size=max_batch)
    # Without an instance group a CPU model gets two processes.
    instances = config.instance_group.add(count=1)
    if device == "cpu":
        instances.kind = pb.ModelInstanceGroup.KIND_CPU
    else:
        instances.kind = pb.ModelInstanceGroup.KIND_GPU
        instances.gpus.append(int(device.removeprefix("cuda:")))
    # A queued request can be cancelled only with dynamic batching. It has no queue policy: with
    # one (size or timeout) the batcher of 24.10 misses the end of a batch and sleeps for 500 ms
    # (32 translations at once: 2.1 s instead of 0.07 s), and timeouts slow it down further by the
    # hour (triton-inference-server/server#8870). The gateway bounds the queue.
    config.dynamic_batching.SetInParent()
    threads = THREADS if device == "cpu" else DEVICE_THREADS
    config.parameters["intra_op_thread_count"].string_value = str(threads)
    return config


def _add_batched(port: pb.ModelInput | pb.ModelOutput, tensor: Tensor) -> None:
    """A port without its batch dimension; Triton requires one more, so (B,) is sent as (B, 1)."""
    dims = [-1 if isinstance(size, str) else size for size in tensor.shape[1:]]
    port.name, port.data_type = tensor.name, _TYPES[tensor.dtype]
    port.dims.extend(dims or [1])
    if not dims:
        port.reshape.SetInParent()
