"""Bodies of the Open Inference Protocol, with JSON tensors alone.

https://github.com/kserve/open-inference-protocol, `specification/protocol/inference_rest.md`
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from serving.gateway.dialects.all_or_nothing import Closed, Open
from triptych.messages import Item
from triptych.parameters import optional

MAX_TENSORS = 16
MAX_DIMENSIONS = 8


class RequestParameters(Closed):
    """What clients send without being told to; the response has JSON tensors in any case."""

    defaults = {"sequence_id": (0, ""), "priority": (0,), "timeout": (0,)}

    binary_data_output: bool | None = None


class OutputParameters(Closed):
    """The same of one output."""

    defaults = {"classification": (0,)}

    binary_data: bool | None = None


class InputTensor(Closed):
    """One tensor: flat in row-major order, or nested."""

    name: str
    shape: list[int] = Field(max_length=MAX_DIMENSIONS)
    datatype: str
    data: list[Any]
    parameters: OutputParameters | None = None


class RequestedOutput(Closed):
    """An output to return."""

    name: str
    parameters: OutputParameters | None = None


class InferBody(Closed):
    """Body of `POST /v2/models/{model}/infer`."""

    id: str | None = Field(default=None, max_length=256)
    model_name: str | None = optional("As in the path; KServe's client sends it.")
    inputs: list[InputTensor] = Field(min_length=1, max_length=MAX_TENSORS)
    outputs: list[RequestedOutput] | None = Field(default=None, max_length=MAX_TENSORS)
    parameters: RequestParameters | None = None


class OutputTensor(Open):
    """One tensor of a response, flat in row-major order; NaN and infinities are null."""

    name: str
    shape: list[int]
    datatype: str
    data: list[Any]


class TensorItem(Item):
    """An output as an item of the service's response."""

    tensor: OutputTensor


class InferAnswer(Open):
    """Body of its response."""

    model_name: str
    model_version: str
    id: str | None = None
    outputs: list[OutputTensor]


class TensorMetadata(Open):
    """Name, type and shape of a tensor; −1 is a dimension that a request chooses."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(Open):
    """Body of `GET /v2/models/{model}`."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ServerMetadata(Open):
    """Body of `GET /v2`."""

    name: str
    version: str
    extensions: list[str]


class ModelReady(Open):
    """Body of `GET /v2/models/{model}/ready`."""

    name: str
    ready: bool


class InferenceError(Open):
    """Body of every response with a status of 400 or more."""

    error: str
