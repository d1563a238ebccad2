"""Entries of the catalog: facts from `checkpoints.json`, the rest computed from their shapes.

Whether a checkpoint can be exported is not written down: its `config.json` (an excerpt, bundled)
is read by the registry's own code, and its network is built without memory for weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from export.architecture import Architecture, Lowering
from export.checkpoint.load_network import tie
from export.pipeline.manifest import tasks
from export.quantization.quantize import NARROWEST
from export.registry import architecture
from inference.bundle.inputs import ImageSpec
from inference.errors import SetupError

_FILE = Path(__file__).with_name("checkpoints.json")
_FLOAT_BYTES = 4
_SOURCE = "admit"
"""This graph holds a decoder, of which it reads little."""
_ONCE = "align"
"""This graph is loaded only by the first request that needs it, and is not counted."""


@dataclass(frozen=True)
class Listed:
    """What `checkpoints.json` states about one checkpoint.

    Attributes:
        name: On the Hugging Face hub.
        revision: A commit; "main" where none is pinned here.
        task: The one that it is known for.
        parameters: Of the published checkpoint, heads included.
        config: An excerpt of its `config.json` that determines network and tasks.
    """

    name: str
    revision: str
    task: str
    licence: str
    parameters: int
    config: Mapping[str, Any]


@dataclass(frozen=True)
class Entry:
    """One line of the catalog.

    Attributes:
        tasks: What this version serves from it; the known task alone where it exports nothing.
        parameters: Of the network that is exported, else of the published checkpoint.
        memory_bytes: Precision → weights of the served graphs; a table that two graphs use counts
            twice. KV cache and activations are extra.
        reason: Why this version does not export it; None where it does.
    """

    name: str
    revision: str
    tasks: tuple[str, ...]
    licence: str
    parameters: int
    memory_bytes: Mapping[str, int]
    reason: str | None = None

    @property
    def is_exportable(self) -> bool:
        """Whether this version exports it."""
        return self.reason is None


def read_catalog() -> list[Listed]:
    """All checkpoints of the file, in its order."""
    return [Listed(**fields) for fields in json.loads(_FILE.read_text(encoding="utf-8"))]


def entries(task: str | None = None) -> list[Entry]:
    """The catalog.

    Args:
        task: Only checkpoints that are known for it, or that this version serves it from.
    """
    every = (entry(checkpoint) for checkpoint in read_catalog())
    known = {checkpoint.name: checkpoint.task for checkpoint in read_catalog()}
    return [one for one in every if task is None or task in (*one.tasks, known[one.name])]


def entry(checkpoint: Listed) -> Entry:
    """One checkpoint as this version supports it."""
    try:
        declared = architecture(checkpoint.config.get("model_type"))
        config = declared.read_config(checkpoint.config)
        served = tasks(declared, config, None)
        with torch.device("meta"):
            network = declared.build(config)
        if checkpoint.config.get("tie_word_embeddings", True):
            for name, other in declared.rename(config).tied.items():
                tie(network, name, other)
    except SetupError as error:
        return Entry(
            checkpoint.name,
            checkpoint.revision,
            (checkpoint.task,),
            checkpoint.licence,
            checkpoint.parameters,
            {"fp32": _FLOAT_BYTES * checkpoint.parameters, "int8": checkpoint.parameters},
            reason=str(error).partition("; supported are")[0],
        )
    graphs = _served_weights(declared, config, network)
    return Entry(
        checkpoint.name,
        checkpoint.revision,
        served,
        checkpoint.licence,
        sum(parameter.numel() for parameter in network.parameters()),
        {"fp32": _bytes(graphs, is_int8=False), "int8": _bytes(graphs, is_int8=True)},
    )


def _served_weights(
    declared: Architecture, config: Any, network: nn.Module
) -> list[list[nn.Parameter]]:
    """Weights of each graph that serving keeps loaded."""
    image, size = None, declared.size_of(config)
    if declared.image_recipe is not None:
        image = declared.image_recipe(config)
    if size is not None:
        image = ImageSpec(
            resize="exact",
            size=size,
            resample=3,
            mean=(0.5, 0.5, 0.5),
            std=(0.5, 0.5, 0.5),
            rescale=1 / 255,
        )
    try:
        with torch.device("meta"):
            lowerings = declared.graphs(network, image).lowerings
    except (RuntimeError, NotImplementedError):  # graphs that depend on the values of weights
        return [list(network.parameters())]
    return [
        read_weights(lowering) if key == _SOURCE else list(lowering.module.parameters())
        for key, lowering in lowerings.items()
        if key != _ONCE
    ]


def _bytes(graphs: Iterable[Iterable[nn.Parameter]], *, is_int8: bool) -> int:
    return sum(
        parameter.numel() * (1 if is_int8 and _is_matrix(parameter) else _FLOAT_BYTES)
        for graph in graphs
        for parameter in graph
    )


def _is_matrix(parameter: torch.Tensor) -> bool:
    """Whether `quantize` stores it in int8: a linear layer's weight or a table."""
    return parameter.ndim == 2 and min(parameter.shape) >= NARROWEST


_SIZE = 2
"""Of each dynamic dimension."""


class _Recorder(TorchFunctionMode):
    """Collects the parameters that functions are called with."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[int, nn.Parameter] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._collect([*args, *(kwargs or {}).values()])
        return func(*args, **(kwargs or {}))

    def _collect(self, values: list[Any]) -> None:
        for value in values:
            if isinstance(value, nn.Parameter):
                self.found[id(value)] = value
            elif isinstance(value, list | tuple):
                self._collect(list(value))


def read_weights(lowering: Lowering) -> list[nn.Parameter]:
    """Weights that a module on the device `meta` reads, each once.

    All of them, where its forward pass needs values and not only shapes.
    """
    with torch.device("meta"), torch.no_grad(), _Recorder() as recorder:
        inputs = [
            torch.zeros(
                [size if isinstance(size, int) else _SIZE for size in port.shape],
                dtype=getattr(torch, port.dtype),
            )
            for port in lowering.graph.inputs
        ]
        try:
            lowering.module(*inputs)
        except (RuntimeError, NotImplementedError):
            return list(lowering.module.parameters())
    return list(recorder.found.values())
