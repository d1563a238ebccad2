"""The exporter's library of operators: which there are, and read once.

The exporter reads it for each graph, a tenth of an export. Collecting all garbage after each phase
of an export is another tenth, in a process that holds the libraries of all tests.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._C import DispatchKey
from torch.onnx._internal.exporter._registration import ONNXRegistry

from export.pipeline import build


@contextmanager
def operators_read_once() -> Iterator[None]:
    """Graphs that are exported in this block share the library.

    What is loaded when it begins is never freed, so no collection of garbage reads it again. At the
    end of each phase an export collects young objects alone.
    """
    gc.freeze()
    young = SimpleNamespace(
        collect=lambda: gc.collect(1), freeze=lambda: None, unfreeze=lambda: None
    )
    with pytest.MonkeyPatch.context() as patch:
        cached = cache(ONNXRegistry.from_torchlib)
        patch.setattr(build, "gc", young)
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(cached))
        yield


def has_translation(target: Any) -> bool:
    """Whether an operator of a trace can be written as ONNX, or is decomposed before."""
    registry, decompositions = _known()
    if not isinstance(target, torch._ops.OpOverload) or not target._schema.returns:
        return True  # arithmetic on sizes, and assertions, which the exporter drops
    is_composed = target.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd)
    return is_composed or registry.is_registered(target) or target in decompositions


@cache
def _known() -> tuple[ONNXRegistry, Any]:
    return ONNXRegistry.from_torchlib(), torch.export.default_decompositions()
