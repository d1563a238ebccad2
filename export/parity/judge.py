"""How exact a graph must be: as PyTorch's float32 is, measured from float64.

Rounding moves the outputs of some networks by more than `TOLERANCE`, whatever computes them: scores
without a scale, for example, make attention a choice between near candidates. PyTorch and ONNX
Runtime then differ from each other although both are right. A mistake in a graph is amplified by
such a network as its rounding is, so that the multiple which is allowed stays a small one.

A network of float32 weights has one exact result, which float64 computes to about 1e-15. How far
PyTorch's own float32 is from it is the rounding that the network makes of its inputs.

Decision D90.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from export.architecture import Graphs

_BLOCK_ELEMENTS = 1 << 20
"""Of a matrix that is widened at once: 8 MB in float64, which stay in a processor's cache."""
_LOOKUPS = (torch.Tensor.__getitem__, torch.Tensor.index_select, functional.embedding)
"""Functions that read some rows of a table."""


class Float64(TorchFunctionMode):
    """Computes in float64 whatever depends on weights or on the inputs of a graph.

    Weights stay in float32 and are widened where they are used, large matrices in parts: twice the
    memory of a network is never needed. Positions, distances and tables that a network computes
    from sizes alone stay float32, as they are constants of the exported graph too; a bucket that
    falls the other way would be another network.

    Args:
        weights: Parameters and buffers.
    """

    def __init__(self, weights: Iterable[Tensor]) -> None:
        super().__init__()
        self._weights = {id(each) for each in weights if each.dtype is torch.float32}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Calls a function of torch on widened tensors."""
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") == "__get__":  # shape and dtype, but also views
            value = func(*args, **kwargs)
            is_view = isinstance(value, Tensor) and id(args[0]) in self._weights
            return _widen(value) if is_view else value
        tensors = [each for each in pytree.tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        if func is torch.Tensor.float:
            return args[0].double() if _is_wide(args[0]) else func(*args)
        if func in _LOOKUPS and (table := self._table(func, args)) is not None:
            return func(*args, **kwargs).double() if table else func(*args, **kwargs)
        if not any(_is_wide(each) or id(each) in self._weights for each in tensors):
            return func(*args, **kwargs)
        if func is functional.linear and args[1].numel() > _BLOCK_ELEMENTS:
            return _linear(*args, **kwargs)
        _refuse_lost_write(func, args)
        args, kwargs = pytree.tree_map(_widen, (args, kwargs))
        return func(*args, **kwargs)

    def _table(self, func: Any, args: tuple[Any, ...]) -> bool | None:
        """Whether a table that is looked up is a weight; None for other arguments."""
        table = args[1] if func is functional.embedding else args[0]
        if not isinstance(table, Tensor) or table.dtype is not torch.float32:
            return None
        return id(table) in self._weights


class _Widened(nn.Module):
    """A module in float64, whatever the type of its inputs."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._module = [module]  # no submodule: its weights are the other's

    def forward(self, *inputs: Tensor) -> Any:
        """The module's outputs."""
        (module,) = self._module
        with Float64(chain(module.parameters(), module.buffers())):
            return module(*map(_widen, inputs))


def in_float64(graphs: Graphs) -> Graphs:
    """The same modules, computing in float64."""
    lowerings = {
        key: replace(each, module=_Widened(each.module)) for key, each in graphs.lowerings.items()
    }
    return replace(graphs, lowerings=lowerings)


def _is_wide(tensor: Tensor) -> bool:
    """Whether a tensor depends on inputs or weights; pixels are inputs."""
    return tensor.dtype in (torch.float64, torch.uint8)


def _widen(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.double() if value.dtype is torch.float32 else value
    return torch.float64 if value is torch.float32 else value


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`functional.linear` of a large matrix, block by block.

    All blocks are widened into one tensor: the C library would place each behind the last one's
    results, and a vocabulary's table would be held whole.
    """
    x, (size, width) = x.double(), weight.shape
    rows = min(size, max(1, _BLOCK_ELEMENTS // width))
    widened, out = x.new_empty(rows, width), x.new_empty(*x.shape[:-1], size)
    for start in range(0, size, rows):
        block = weight[start : start + rows]
        out[..., start : start + rows] = x @ widened[: len(block)].copy_(block).T
    return out if bias is None else out + bias.double()


def _refuse_lost_write(func: Any, args: tuple[Any, ...]) -> None:
    """A write into a widened copy would be lost."""
    name = getattr(func, "__name__", "")
    writes = name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
    assert not (writes and args[0].dtype is torch.float32), f"{name} writes float32 in place"


TOLERANCE = 1e-5
"""Relative to the largest magnitude of an output; allowed to every float32 graph."""
MULTIPLE = 4
"""Of PyTorch's distance from float64 that is allowed, where that is more."""
SEEDS = (1, 2, 3)
"""Of further inputs that PyTorch's distance is taken from, before a doubtful graph is refused."""
CEILING = 1e-2
"""Most that is allowed. A network whose float32 is farther from float64 than a quarter of it cannot
be judged: its outputs are rounding."""
DIFFERS = "ONNX differs from the float64 network"


@dataclass
class Distance:
    """How far one output is from the float64 network, at worst over all inputs.

    Attributes:
        onnx: Of the exported graph, relative to the largest magnitude.
        torch: Of PyTorch in float32.
        place: Where the graph is farthest.
    """

    onnx: float = 0.0
    torch: float = 0.0
    place: str = ""

    @property
    def allowed(self) -> float:
        """What the graph may be away."""
        return allowed(self.torch)

    @property
    def is_allowed(self) -> bool:
        """Whether it is no farther than that; NaN is."""
        return self.onnx <= self.allowed

    def add(self, place: str, onnx: float, torch: float) -> None:
        """Adds one comparison."""
        if not self.place or worse(self.onnx, onnx) is not self.onnx:
            self.place = place
        self.onnx, self.torch = worse(self.onnx, onnx), worse(self.torch, torch)

    @property
    def is_doubtful(self) -> bool:
        """Whether more inputs may show that PyTorch is as far away."""
        return not self.is_allowed and self.onnx <= CEILING

    def refusal(self) -> str:
        """Why the graph is refused."""
        text = (
            f"{DIFFERS} at {self.place}: by {self.onnx:.1e} of the largest value, "
            f"{self.allowed:.0e} is allowed (PyTorch's float32 differs by {self.torch:.1e})"
        )
        if MULTIPLE * self.torch > CEILING:
            text += "; rounding alone decides what this network computes in float32"
        return text


def allowed(torch: float) -> float:
    """What a graph may be away from float64, where PyTorch's float32 is that far."""
    return max(TOLERANCE, min(MULTIPLE * torch, CEILING)) if math.isfinite(torch) else TOLERANCE


def worse(one: float, other: float) -> float:
    """The larger difference; NaN is larger than any."""
    return max(one, other, key=lambda value: (math.isnan(value), value))
