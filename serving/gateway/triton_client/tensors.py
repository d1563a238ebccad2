"""Arrays as the tensors of Triton's messages, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from tritonclient.grpc import InferInput, InferResult
from tritonclient.grpc.service_pb2 import ModelInferRequest, ModelInferResponse
from tritonclient.utils import (
    deserialize_bytes_tensor,
    np_to_triton_dtype,
    serialize_byte_tensor,
    triton_to_np_dtype,
)

from inference.errors import InternalError
from inference.tasks.shared.model_calls import Array


def arrays_of(response: ModelInferResponse) -> dict[str, Array]:
    """The outputs of a generator: numbers and short strings, always as raw bytes."""
    outputs = zip(response.outputs, response.raw_output_contents, strict=True)
    return {output.name: _array(output.datatype, output.shape, raw) for output, raw in outputs}


def _array(datatype: str, shape: Sequence[int], raw: bytes) -> Array:
    if datatype == "BYTES":
        found: Array = deserialize_bytes_tensor(raw)
    else:
        found = np.frombuffer(raw, triton_to_np_dtype(datatype))
    return found.reshape(shape)


def stream_request(
    model: str, version: int, request_id: str, inputs: Mapping[str, Array]
) -> ModelInferRequest:
    """The request of a sequence; Triton marks its end even where that has no other content."""
    request = ModelInferRequest(model_name=model, model_version=str(version), id=request_id)
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    for name, array in inputs.items():
        datatype = np_to_triton_dtype(array.dtype)
        request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        raw = serialize_byte_tensor(array).item() if datatype == "BYTES" else array.tobytes()
        request.raw_input_contents.append(raw)
    return request


def infer_input(name: str, array: Array) -> InferInput:
    """An input of a stateless call."""
    array = array[:, None] if array.ndim == 1 else array  # Triton requires two dimensions
    tensor = InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    tensor.set_data_from_numpy(np.ascontiguousarray(array))
    return tensor


def output_of(result: InferResult, name: str, model: str) -> Array:
    """An output of a stateless call.

    Raises:
        InternalError: the response does not have it.
    """
    array: Array | None = result.as_numpy(name)
    if array is None:
        raise InternalError(f"{model} answered without {name}: export it again")
    return array
