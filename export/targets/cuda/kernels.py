"""The CUDA kernels of ONNX Runtime, from a committed table: no GPU is needed to look them up."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from onnx import NodeProto, helper

TABLE = Path(__file__).with_name("kernels.json")

NEEDS_CUDNN = frozenset(
    {
        *("Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"),
        *("BatchNormalization", "InstanceNormalization", "LRN", "GRU", "LSTM", "RNN"),
        *("ArgMax", "ArgMin", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"),
        *("ReduceMax", "ReduceMin", "ReduceProd", "ReduceSumSquare", "MultiHeadAttention"),
    }
)
"""Operators whose kernels call cuDNN, which is loaded at their first run: placement does not show
it. `ReduceSum` and `ReduceMean` over the last dimensions, `Softmax` and `LayerNormalization` do
without. `MultiHeadAttention` asks for cuDNN's handle before it chooses a kernel."""

_PEEPHOLE = 7  # LSTM's input


@dataclass(frozen=True)
class Kernel:
    """One registered kernel.

    Attributes:
        since: First version of the operator that it computes.
        until: Last one; None for those that were added for `since` alone.
        types: Constraint of the operator's signature → the types that it takes.
    """

    since: int
    until: int | None
    types: Mapping[str, frozenset[str]]

    def takes(self, since: int, bound: Mapping[str, str]) -> bool:
        """Whether it computes an operator of that version with inputs of those types."""
        is_version = self.since == since or (
            self.until is not None and self.since <= since <= self.until
        )
        return is_version and all(
            bound[constraint] in types
            for constraint, types in self.types.items()
            if constraint in bound
        )


def restriction(node: NodeProto) -> str | None:
    """What ONNX Runtime's CUDA provider refuses in an operator whose types it takes; None if fine.

    The provider leaves such recurrent operators to the CPU (cuDNN lacks these forms), and a search
    for the last of equal numbers.
    """
    attributes = {each.name: each for each in node.attribute}

    def is_set(name: str) -> bool:
        return name in attributes and bool(helper.get_attribute_value(attributes[name]))

    if node.op_type in ("ArgMax", "ArgMin") and is_set("select_last_index"):
        return "select_last_index=1"
    if node.op_type not in ("RNN", "LSTM", "GRU"):
        return None
    if node.op_type == "GRU" and not is_set("linear_before_reset"):
        return "linear_before_reset=0"
    if node.op_type == "LSTM" and len(node.input) > _PEEPHOLE and node.input[_PEEPHOLE]:
        return "peepholes"
    refused = ("clip", "activation_alpha", "activation_beta", "input_forget")
    return next((name for name in refused if is_set(name)), None)


@cache
def kernels() -> Mapping[tuple[str, str], tuple[Kernel, ...]]:
    """(domain, operator) → its kernels."""
    found: dict[tuple[str, str], list[Kernel]] = defaultdict(list)
    for entry in json.loads(TABLE.read_text(encoding="utf-8"))["kernels"]:
        types = {name: frozenset(listed.split()) for name, listed in entry["types"].items()}
        kernel = Kernel(entry["since"], entry.get("until"), types)
        found[entry.get("domain", ""), entry["operator"]].append(kernel)
    return {operator: tuple(each) for operator, each in found.items()}


def has_kernel(domain: str, operator: str, since: int, bound: Mapping[str, str]) -> bool:
    """Whether CUDA computes an operator.

    Args:
        since: Version of the operator in the graph's opset.
        bound: Constraint → type.
    """
    return any(each.takes(since, bound) for each in kernels().get((domain, operator), ()))


@dataclass(frozen=True)
class Kernels:
    """What a device computes.

    Attributes:
        name: For messages.
        has: Whether it computes an operator, as `has_kernel`.
    """

    name: str
    has: Callable[[str, str, int, Mapping[str, str]], bool]


CUDA = Kernels("CUDA", has_kernel)


def lacks(precision: str, since: Mapping[str, int]) -> list[str]:
    """Of some operators of float32 values those that have no kernel of a lower type.

    Args:
        since: Operator → its version.
    """
    return sorted(
        operator
        for operator, version in since.items()
        if any(
            each.takes(version, {name: "float32"})
            and not has_kernel("", operator, version, {name: precision})
            for each in kernels().get(("", operator), ())
            for name, types in each.types.items()
            if "float32" in types
        )
    )
