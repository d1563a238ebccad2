"""The engine's runner over the PyTorch modules: the reference that ONNX is held against.

It is written for clearness, not for speed: states are plain tensors, grown by padding. The search
above it is the very one that serves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from export.architecture import Graphs
from serving.bundle import Growth, Manifest, Role, State
from serving.engine.runner import Candidates, Prompt


class TorchRunner:
    """Eager modules behind `serving.engine.runner.Runner`.

    Args:
        graphs: The modules, in eager form.
        manifest: For the vocabulary's size and the generation rules.
    """

    def __init__(self, graphs: Graphs, manifest: Manifest) -> None:
        assert manifest.vocabulary_size is not None
        self.graphs = graphs
        self.vocabulary_size = manifest.vocabulary_size
        rules = manifest.generation
        excluded = rules.always_banned if rules and rules.renormalize_logits else ()
        self.bias = torch.zeros(self.vocabulary_size)
        self.bias[list(excluded)] = -torch.inf

    def group(self, width: int) -> TorchGroup:
        """A new, empty group."""
        return TorchGroup(self.graphs, width, self.bias)

    def close(self) -> None:
        """Nothing to free: the modules are the caller's."""


class TorchGroup:
    """The live sequences of one beam width; see `serving.engine.runner.Group`."""

    def __init__(self, graphs: Graphs, width: int, bias: Tensor) -> None:
        self.width = width
        self._bias = bias  # (V,): minus infinity for tokens that get no probability
        self._step = graphs.lowerings["step"]
        self._admit = graphs.lowerings.get("admit")
        self._states = graphs.states
        self._values: dict[str, Tensor] = {}
        self._lengths = torch.zeros(0, dtype=torch.int32)  # (B,)
        self._sources = torch.zeros(0, dtype=torch.int32)  # (B,)

    @torch.no_grad()
    def admit(self, prompts: Sequence[Prompt], k: int) -> Candidates:
        """Encodes sources and prefills prompts, one row a prompt."""
        lengths = torch.tensor([len(prompt.token_ids) for prompt in prompts], dtype=torch.int32)
        tokens = right_padded([prompt.token_ids for prompt in prompts])
        sources, held = self._encode(prompts)
        values = held | self._empty_rows(len(prompts), tokens.shape[1])
        logits = self._call(values, tokens, lengths, sources, last=lengths.long() - 1)
        for state in self._states:
            new = values[state.name]
            if state.growth is not Growth.HOLD:
                new = new.repeat_interleave(self.width, dim=0)
            self._values[state.name] = joined(self._values.get(state.name), new, state)
        self._lengths = torch.cat([self._lengths, lengths])
        self._sources = torch.cat([self._sources, sources])
        return candidates(logits + self._bias, k)

    @torch.no_grad()
    def step(self, token_ids: NDArray[np.int64], k: int) -> Candidates:
        """Appends one token to every row."""
        self._lengths = self._lengths + 1
        room = int(self._lengths.max())
        for state in self._states:
            if state.growth is Growth.APPEND:
                self._values[state.name] = _stretched(self._values[state.name], room, dim=2)
        lengths = self._lengths.repeat_interleave(self.width)
        tokens = torch.from_numpy(token_ids)[:, None]
        logits = self._call(
            self._values, tokens, lengths, self._sources, torch.zeros_like(lengths).long()
        )
        return candidates(logits + self._bias, k)

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Gives rows the state of other rows."""
        for state in self._states:
            if state.growth is not Growth.HOLD:
                value = self._values[state.name]
                value[list(targets)] = value[list(sources)]

    def retire(self, slot: int) -> None:
        """Moves the last sequence into the hole."""
        last = len(self._lengths) - 1
        slots = torch.arange(last)
        if slot < last:
            slots[slot] = last
        rows = (slots[:, None] * self.width + torch.arange(self.width)).flatten()
        for state in self._states:
            kept = slots if state.growth is Growth.HOLD else rows
            self._values[state.name] = self._values[state.name][kept]
        self._lengths, self._sources = self._lengths[slots], self._sources[slots]

    def _encode(self, prompts: Sequence[Prompt]) -> tuple[Tensor, dict[str, Tensor]]:
        """Source lengths (0 where there is no text) and what `admit` computes, by state name."""
        lengths = torch.tensor(
            [0 if p.source_ids is None else len(p.source_ids) for p in prompts], dtype=torch.int32
        )
        if self._admit is None:
            return lengths, {}
        feeds = []
        for port in self._admit.graph.inputs:
            if port.role is Role.SOURCE:
                feeds.append(lengths)
            elif port.role is Role.PIXELS:
                feeds.append(torch.from_numpy(np.stack([prompt.pixels for prompt in prompts])))
            else:
                feeds.append(right_padded([prompt.source_ids for prompt in prompts]))
        outputs = dict(
            zip(
                [port.name for port in self._admit.graph.outputs],
                self._admit.module(*feeds),
                strict=True,
            )
        )
        named = {s.name: outputs[s.admit_output] for s in self._states if s.admit_output}
        return lengths, named

    def _empty_rows(self, count: int, positions: int) -> dict[str, Tensor]:
        """Zeros for the states that `admit` does not give."""
        sizes = {"R": count, "B": count, "P": positions}
        return {
            state.name: torch.zeros([sizes[d] if isinstance(d, str) else d for d in state.shape])
            for state in self._states
            if state.admit_output is None
        }

    def _call(
        self,
        values: dict[str, Tensor],
        tokens: Tensor,
        lengths: Tensor,
        sources: Tensor,
        last: Tensor,
    ) -> Tensor:
        """One call of `step`; new states replace the old ones in `values`."""
        controls = {
            Role.TOKENS: tokens,
            Role.LENGTHS: lengths,
            Role.TOTAL: lengths.max(),
            Role.LAST: last,
            Role.SOURCE: sources,
        }
        by_input = {state.step_input: values[state.name] for state in self._states}
        feeds = [
            by_input[port.name] if port.role is Role.STATE else controls[port.role]
            for port in self._step.graph.inputs
        ]
        names = [port.name for port in self._step.graph.outputs]
        outputs = dict(zip(names, self._step.module(*feeds), strict=True))
        for state in self._states:
            if state.step_output is not None:
                values[state.name] = outputs[state.step_output]
        logits = self._step.graph.output(Role.LOGITS)
        assert logits is not None
        return outputs[logits.name]


def candidates(logits: Tensor, k: int) -> Candidates:
    """The k best of each row; of equal ones the lowest id first."""
    log_probs = logits.log_softmax(dim=-1)
    order = logits.sort(dim=-1, descending=True, stable=True).indices[:, :k]
    return Candidates(order.numpy(), log_probs.gather(1, order).numpy())


def right_padded(rows: Sequence[NDArray[np.int64] | None]) -> Tensor:
    """Rows of ids as (rows, longest), zeros behind."""
    tensors = [torch.from_numpy(np.asarray(row, np.int64)) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)


def joined(old: Tensor | None, new: Tensor, state: State) -> Tensor:
    """Rows of both, stretched to one size along the dynamic dimension."""
    if old is None:
        return new
    for dim, size in enumerate(state.shape):
        if dim and isinstance(size, str):
            room = max(old.shape[dim], new.shape[dim])
            old, new = _stretched(old, room, dim), _stretched(new, room, dim)
    return torch.cat([old, new])


def _stretched(value: Tensor, size: int, dim: int) -> Tensor:
    """The tensor with zeros behind, up to `size` along `dim`."""
    missing = max(0, size - value.shape[dim])
    padding = [0, 0] * (value.ndim - 1 - dim) + [0, missing]
    return functional.pad(value, padding)
