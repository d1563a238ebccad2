"""From a checkpoint's tensor names to ours: tables that are read in both directions.

A table maps module names; the last part (`weight`, `bias`) is carried over. `*` stands for a layer
number; a name with its numbers written out takes precedence. `None` marks tensors that a checkpoint
may hold and that the network does not use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

from torch import Tensor

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)|^\d+(?=\.)")
_TENSORFLOW = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
"""Names of TensorFlow's norms, which `transformers` reads in the files of every model."""


@dataclass(frozen=True)
class WeightLayout:
    """How a checkpoint stores one or several of our tensors.

    Attributes:
        targets: Our names, in the order in which they are stacked along the output dimension.
        shares: How many parts of the output dimension each has; of one size when not given.
        is_transposed: Weights are stored (in, out), as OpenAI's GPT-2 does (`Conv1D`).
        is_squeezed: Leading dimensions of size one are to be dropped.
        is_flattened: All dimensions but the first one are one of ours.
        is_spare: Used only where no other tensor of the checkpoint has these targets.
    """

    targets: tuple[str, ...]
    shares: tuple[int, ...] = ()
    is_transposed: bool = False
    is_squeezed: bool = False
    is_flattened: bool = False
    is_spare: bool = False

    def pieces(self, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Our tensors, with their names."""
        if self.is_squeezed:
            while tensor.ndim > 1 and tensor.shape[0] == 1:
                tensor = tensor[0]
        if self.is_flattened:
            tensor = tensor.flatten(1)
        if self.is_transposed and tensor.ndim == 2:
            tensor = tensor.T
        count = len(self.targets)
        ends = [len(tensor) * end // sum(self.shares) for end in accumulate(self.shares)]
        sections = ends[:-1] or count
        parts = tensor.tensor_split(sections) if count > 1 and tensor.ndim else [tensor] * count
        yield from zip(self.targets, parts, strict=True)


Entry = str | WeightLayout | None
Names = dict[str, Entry]
"""Checkpoint name → ours."""


def normed_names(layer: str, norm: str, ours: str, kind: str = "convolution") -> Names:
    """A layer and the batch normalisation behind it, whose count of batches is not read.

    Args:
        kind: Our name of the layer.
    """
    return {layer: f"{ours}.{kind}", norm: f"{ours}.norm", f"{norm}.num_batches_tracked": None}


class Rename:
    """One model's table.

    Args:
        table: Checkpoint name → ours. Several names may lead to one of ours (tied weights); the
            first of them is the one that messages use.
        optional: Names of ours that a checkpoint may leave out.
        tied: Parameter of ours → the one that it becomes where a checkpoint leaves it out or holds
            it with equal values, as `transformers` ties them.
        ignored: Beginnings of the names of tensors of parts that the network lacks.
    """

    def __init__(
        self,
        table: Mapping[str, Entry],
        optional: frozenset[str] = frozenset(),
        tied: Mapping[str, str] | None = None,
        ignored: tuple[str, ...] = (),
    ) -> None:
        self.table = dict(table)
        self.optional = optional
        self.tied = dict(tied or {})
        self.ignored = ignored

    def find(self, name: str) -> WeightLayout:
        """Targets of a checkpoint's tensor; none for one that is to be skipped.

        Raises:
            KeyError: the table has no such name.
        """
        if name.startswith(self.ignored):
            return WeightLayout(())
        for old, new in _TENSORFLOW.items():
            if name.endswith(old):
                name = name.removesuffix(old) + new
        numbers = _NUMBER.findall(name)
        pattern = _NUMBER.sub("*", name)
        if name in self.table or name.rpartition(".")[0] in self.table:
            numbers, pattern = [], name
        module, _, leaf = pattern.rpartition(".")
        if pattern in self.table:
            entry, suffix = self.table[pattern], ""
        else:
            entry, suffix = self.table[module], f".{leaf}"
        if not isinstance(entry, WeightLayout):
            entry = WeightLayout(() if entry is None else (entry,))
        targets = tuple(_number(target, numbers) + suffix for target in entry.targets)
        return replace(entry, targets=targets)

    def origin(self, ours: str) -> str:
        """The checkpoint's name for one of our tensors, for messages."""
        numbers = _NUMBER.findall(ours)
        pattern = _NUMBER.sub("*", ours)
        module, _, leaf = pattern.rpartition(".")
        for theirs, entry in self.table.items():
            targets = entry.targets if isinstance(entry, WeightLayout) else (entry,)
            if ours.rpartition(".")[0] in targets:
                return f"{theirs}.{leaf}"
            if pattern in targets:
                return _number(theirs, numbers)
            if module in targets:
                return _number(f"{theirs}.{leaf}", numbers)
        return ours

    def prefixed(self, theirs: str, ours: str) -> dict[str, Entry]:
        """The table with a prefix on both sides, to be part of a larger model's."""
        return {f"{theirs}{name}": _prefix(entry, ours) for name, entry in self.table.items()}


def projections(theirs: str, ours: str, names: str = "q_proj k_proj v_proj out_proj") -> Names:
    """An attention's four linear layers.

    Args:
        names: Of query, key, value and output; most of `transformers` uses the default.
    """
    pairs = zip(names.split(), ("query", "key", "value", "out"), strict=True)
    return {f"{theirs}.{name}": f"{ours}.{own}" for name, own in pairs}


BERT_ATTENTION = "self.query self.key self.value output.dense"
VIT_ATTENTION = "attention.query attention.key attention.value output.dense"


BERT_BLOCK = (
    "attention.self.query attention.self.key attention.self.value attention.output.dense "
    "attention.output.LayerNorm intermediate.dense output.dense output.LayerNorm"
)
_BLOCK = (
    "attention.query attention.key attention.value attention.out "
    "attention_norm mlp.up mlp.down mlp_norm"
)


def bert_block(theirs: str, ours: str, names: str = BERT_BLOCK) -> Names:
    """An encoder block.

    Args:
        names: Of its parts, in the order of `_BLOCK`; many families use BERT's.
    """
    pairs = zip(names.split(), _BLOCK.split(), strict=True)
    return {f"{theirs}.{name}": f"{ours}.{own}" for name, own in pairs}


def packed_projections(theirs: str, ours: str) -> Names:
    """`torch.nn.MultiheadAttention`, whose first three projections are one tensor."""
    names = [f"{ours}.{part}" for part in ("query", "key", "value")]
    return {
        f"{theirs}.in_proj_{leaf}": WeightLayout(tuple(f"{name}.{leaf}" for name in names))
        for leaf in ("weight", "bias")
    } | {f"{theirs}.out_proj": f"{ours}.out"}


def with_and_without(prefix: str, table: Mapping[str, Entry]) -> dict[str, Entry]:
    """A table whose names may have a prefix: a model with a head has it, a bare one does not."""
    return {**{f"{prefix}{name}": entry for name, entry in table.items()}, **table}


def _number(name: str, numbers: list[str]) -> str:
    for number in numbers:
        name = name.replace("*", number, 1)
    return name


def _prefix(entry: Entry, prefix: str) -> Entry:
    if entry is None:
        return None
    if isinstance(entry, str):
        return prefix + entry
    targets = tuple(prefix + target for target in entry.targets)
    return replace(entry, targets=targets)
