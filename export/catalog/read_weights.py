"""The weights that a graph reads: of a decoder, `admit` has the source's projections alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from export.architecture import Lowering

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
