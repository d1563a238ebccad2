"""Bodies of the Open Inference Protocol, as calls of one graph.

Ids and indices are looked up by the graph, and what one that is out of range reads depends on the
runtime, so every one is checked here.

https://github.com/kserve/open-inference-protocol, `specification/protocol/inference_rest.md`
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import Field
from tritonclient.utils import np_to_triton_dtype

from inference.bundle.manifest import Part, Role, Tensor
from inference.errors import InvalidRequest, ServingError, UnknownModel
from inference.generation import Finished
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.model_calls import MAX_ROWS, Array, InferCall, Outcome
from inference.tasks.shared.served_task import Plan
from serving.gateway.dialects.all_or_nothing import ResponseMessage
from triptych.messages import ClosedMessage, Item, Response, optional

MAX_TENSORS = 16
MAX_DIMENSIONS = 8


class RequestParameters(ClosedMessage):
    """What clients send without being told to; the response has JSON tensors in any case."""

    defaults = {"sequence_id": (0, ""), "priority": (0,), "timeout": (0,)}

    binary_data_output: bool | None = None


class OutputParameters(ClosedMessage):
    """The same of one output."""

    defaults = {"classification": (0,)}

    binary_data: bool | None = None


class InputTensor(ClosedMessage):
    """One tensor: flat in row-major order, or nested."""

    name: str
    shape: list[int] = Field(max_length=MAX_DIMENSIONS)
    datatype: str
    data: list[Any]
    parameters: OutputParameters | None = None


class RequestedOutput(ClosedMessage):
    """An output to return."""

    name: str
    parameters: OutputParameters | None = None


class InferBody(ClosedMessage):
    """Body of `POST /v2/models/{model}/infer`."""

    id: str | None = Field(default=None, max_length=256)
    model_name: str | None = optional("As in the path; KServe's client sends it.")
    inputs: list[InputTensor] = Field(min_length=1, max_length=MAX_TENSORS)
    outputs: list[RequestedOutput] | None = Field(default=None, max_length=MAX_TENSORS)
    parameters: RequestParameters | None = None


class OutputTensor(ResponseMessage):
    """One tensor of a response, flat in row-major order; NaN and infinities are null."""

    name: str
    shape: list[int]
    datatype: str
    data: list[Any]


class TensorItem(Item):
    """An output as an item of the service's response."""

    tensor: OutputTensor


class InferAnswer(ResponseMessage):
    """Body of its response."""

    model_name: str
    model_version: str
    id: str | None = None
    outputs: list[OutputTensor]


class TensorMetadata(ResponseMessage):
    """Name, type and shape of a tensor; −1 is a dimension that a request chooses."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(ResponseMessage):
    """Body of `GET /v2/models/{model}`."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ServerMetadata(ResponseMessage):
    """Body of `GET /v2`."""

    name: str
    version: str
    extensions: list[str]


class ModelReady(ResponseMessage):
    """Body of `GET /v2/models/{model}/ready`."""

    name: str
    ready: bool


class InferenceError(ResponseMessage):
    """Body of every response with a status of 400 or more."""

    error: str


MAX_VALUES = 200_000
"""Of all outputs of a response, as a JSON body may have commas."""
_MAX_CHOICES = 1000
_TEXT = {Role.TOKENS, Role.LENGTHS, Role.SEGMENTS, Role.POSITIONS, Role.CHOICES}
_TAKEN = _TEXT | {Role.PIXELS}


@dataclass(frozen=True)
class Graph:
    """A stateless graph that takes tensors from outside.

    Attributes:
        model: The bundle that it is of.
        part: The graph, and the model of Triton that runs it.
    """

    model: LoadedModel
    part: Part

    @property
    def inputs(self) -> list[TensorMetadata]:
        """What a request sends."""
        return [_describe(tensor) for tensor in self.part.graph.inputs]

    @property
    def outputs(self) -> list[TensorMetadata]:
        """What a response may have."""
        return [_describe(tensor) for tensor in self.part.graph.outputs]

    def call(self, body: InferBody) -> InferCall:
        """The call that a request describes.

        Raises:
            InvalidRequest: a tensor is missing, unknown, of another type or shape, or out of range.
        """
        given = {tensor.name: tensor for tensor in body.inputs}
        wanted = {tensor.name: tensor for tensor in self.part.graph.inputs}
        if given.keys() != wanted.keys() or len(given) != len(body.inputs):
            raise InvalidRequest(
                f"{self.part.model} takes the inputs {', '.join(wanted)}, each once", field="inputs"
            )
        rows = min(self.model.task_limits.max_client_batch_size, MAX_ROWS)
        sizes = {"B": rows, "T": self.model.text_limit, "N": _MAX_CHOICES}
        sizes["M"] = sizes["T"]
        found: dict[str, int] = {}
        arrays: dict[Role, Array] = {}
        for name, tensor in wanted.items():
            _check_shape(given[name], tensor, found, sizes)
            assert tensor.role is not None  # else it is not offered
            arrays[tensor.role] = _array(given[name], tensor)
        self._check_ranges(arrays)
        roles = self._roles(body)
        count = sum(
            math.prod(found.get(axis, 1) if isinstance(axis, str) else axis for axis in each.shape)
            for each in self.part.graph.outputs
            if each.role in roles
        )
        if count > MAX_VALUES:
            raise InvalidRequest(
                f"the outputs have {count} values: at most {MAX_VALUES}; name fewer outputs, or "
                "send fewer rows",
                field="outputs",
            )
        return InferCall.of(self.part, arrays, roles)

    def _roles(self, body: InferBody) -> tuple[Role, ...]:
        """Roles of the outputs that are requested, by default of all."""
        known = {each.name: each.role for each in self.part.graph.outputs if each.role}
        names = [each.name for each in body.outputs] if body.outputs else list(known)
        if set(names) - known.keys() or len(set(names)) != len(names):
            raise InvalidRequest(
                f"{self.part.model} has the outputs {', '.join(known)}, each once", field="outputs"
            )
        return tuple(known[name] for name in names)

    def _check_ranges(self, arrays: Mapping[Role, Array]) -> None:
        vocabulary = self.model.manifest.source_vocabulary_size or 0
        width = arrays[Role.TOKENS].shape[1] if Role.TOKENS in arrays else 0
        bounds = {
            Role.TOKENS: (0, vocabulary),
            Role.CHOICES: (0, vocabulary),
            Role.LENGTHS: (1, width + 1),
            Role.SEGMENTS: (0, 2),
            Role.POSITIONS: (0, width),
        }
        for role, array in arrays.items():
            low, high = bounds.get(role, (0, 256))
            if array.min() < low or array.max() >= high:
                raise InvalidRequest(f"{role} must be from {low} to {high - 1}", field="inputs")


def graph_of(models: Sequence[LoadedModel], name: str) -> Graph:
    """The graph that a model of Triton runs.

    Raises:
        UnknownModel: there is none of that name that takes tensors.
    """
    graphs = [graph for model in models for graph in _graphs(model)]
    for graph in graphs:
        if graph.part.model == name:
            return graph
    names = ", ".join(graph.part.model for graph in graphs) or "none"
    raise UnknownModel(f"no such model here; those that take tensors are: {names}")


def _graphs(model: LoadedModel) -> Iterator[Graph]:
    manifest = model.manifest
    if manifest.generator is not None:
        return
    for key, graph in manifest.graphs.items():
        roles = {tensor.role for tensor in graph.inputs}
        is_bounded = not roles & _TEXT or manifest.source_vocabulary_size is not None
        if roles <= _TAKEN and is_bounded and all(tensor.role for tensor in graph.outputs):
            instances = manifest.placement.instances if manifest.placement else 1
            yield Graph(model, Part(manifest.parts[key], manifest.version, graph, instances))


@dataclass(frozen=True)
class TensorPlan(Plan):
    """One call, whose outputs are the response."""

    graph: Graph
    calls: tuple[InferCall, ...]

    def finish(self, outcomes: Sequence[Outcome]) -> Response[TensorItem]:
        """The outputs by name.

        Raises:
            ServingError: the call failed.
        """
        [outcome] = outcomes
        if isinstance(outcome, ServingError):
            raise outcome
        [call] = self.calls
        assert not isinstance(outcome, Finished)  # of a generator
        arrays = [(name, outcome[role]) for name, role in call.outputs.items()]
        items = [
            TensorItem(
                index=index,
                tensor=OutputTensor(
                    name=name,
                    shape=list(array.shape),
                    datatype=np_to_triton_dtype(array.dtype),
                    data=array.ravel().tolist(),
                ),
            )
            for index, (name, array) in enumerate(arrays)
        ]
        return Response[TensorItem](model=call.model, data=items)


def _describe(tensor: Tensor) -> TensorMetadata:
    shape = [-1 if isinstance(axis, str) else axis for axis in tensor.shape]
    return TensorMetadata(name=tensor.name, datatype=_datatype(tensor), shape=shape)


def _datatype(tensor: Tensor) -> str:
    name: str = np_to_triton_dtype(np.dtype(tensor.dtype))
    return name


def _check_shape(
    given: InputTensor, tensor: Tensor, found: dict[str, int], limits: Mapping[str, int]
) -> None:
    """Refuse a shape that is not the graph's.

    Args:
        found: Named dimensions so far; those of this tensor are added.
        limits: The largest sizes of named dimensions.
    """
    expected = _describe(tensor).shape
    is_equal = len(given.shape) == len(expected) and all(
        wanted in (-1, size) and size > 0
        for size, wanted in zip(given.shape, expected, strict=True)
    )
    if not is_equal:
        raise InvalidRequest(
            f"{tensor.name} must have a shape like {expected} (-1: any size from 1)", field="inputs"
        )
    for size, axis in zip(given.shape, tensor.shape, strict=True):
        if not isinstance(axis, str):
            continue
        if size > limits.get(axis, 0):
            raise InvalidRequest(
                f"a dimension of {tensor.name} is larger than {limits.get(axis, 0)}", field="inputs"
            )
        if found.setdefault(axis, size) != size:
            raise InvalidRequest(
                f"a dimension of {tensor.name} is not the {found[axis]} of another input",
                field="inputs",
            )


def _array(given: InputTensor, tensor: Tensor) -> Array:
    """The values, which are integers in every input that is taken.

    Raises:
        InvalidRequest: another type, another number of values, or not integers of that type.
    """
    if given.datatype != _datatype(tensor):
        raise InvalidRequest(f"{tensor.name} is {_datatype(tensor)}", field="inputs")
    values = _values(given.data, tensor.name)
    if values.shape not in (tuple(given.shape), (math.prod(given.shape),)):
        raise InvalidRequest(f"{tensor.name} has not the values of its shape", field="inputs")
    limits = np.iinfo(tensor.dtype)
    if values.min() < limits.min or values.max() > limits.max:
        raise InvalidRequest(
            f"{tensor.name} must be from {limits.min} to {limits.max}", field="inputs"
        )
    return values.astype(tensor.dtype).reshape(given.shape)


def _values(data: list[Any], name: str) -> Array:
    """Nested lists as int64; numpy itself would make room for the longest string of them.

    Raises:
        InvalidRequest: something is not an integer, or lists of one depth differ in length.
    """
    shape, level = [len(data)], data
    while level and type(level[0]) is list and len(shape) < MAX_DIMENSIONS:
        length = len(level[0])
        if any(type(each) is not list or len(each) != length for each in level):
            raise InvalidRequest(f"{name} is nested unevenly", field="inputs")
        shape.append(length)
        level = [value for each in level for value in each]
    if not level or any(type(value) is not int for value in level):
        raise InvalidRequest(f"{name} must be integers, flat or nested evenly", field="inputs")
    try:
        return np.array(level, np.int64).reshape(shape)
    except OverflowError:
        raise InvalidRequest(
            f"{name} has an integer of more than 64 bits", field="inputs"
        ) from None
