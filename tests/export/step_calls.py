"""A decoder's modules `admit` and `step`, called as the engine calls their graphs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from export.architecture import Graphs
from inference.bundle.manifest import Graph, Growth, Role, State


def teacher_forced(
    graphs: Graphs, sources: Mapping[Role, Tensor], target: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Logits (R, T, V) and, of decoders that emit it, attention (R, T, S): one token a call.

    Args:
        sources: Inputs of `admit`; further ones are ignored.
        target: (R, T) decoder input tokens.
    """
    calls = StepCalls(graphs, sources, target.shape)
    logits, attention = [], []
    for index in range(target.shape[1]):
        outputs = calls(target[:, index : index + 1], index + 1)
        logits.append(outputs[Role.LOGITS])
        attention.append(outputs.get(Role.EMIT))
    emitted = [weights for weights in attention if weights is not None]
    return torch.stack(logits, dim=1), torch.stack(emitted, dim=1) if emitted else None


def prefill(
    graphs: Graphs, sources: Mapping[Role, Tensor], target: Tensor
) -> tuple[int, Tensor] | None:
    """(T, logits (R, V)) of one call with all T tokens; None for decoders of one token a call."""
    count = target.shape[1]
    if graphs.lowerings["step"].graph.max_tokens_per_call == 1:
        return None
    calls = StepCalls(graphs, sources, (len(target), count + 2))
    return count, calls(target, count)[Role.LOGITS]


class StepCalls:
    """Calls of the module `step`, each on the states of the previous call.

    Args:
        shape: Rows, and the capacity of the caches in positions.
    """

    def __init__(
        self, graphs: Graphs, sources: Mapping[Role, Tensor], shape: tuple[int, ...]
    ) -> None:
        self.step, self.states = graphs.lowerings["step"], graphs.states
        self.source = sources.get(Role.SOURCE)
        sizes = {"R": shape[0], "B": shape[0], "P": shape[1]}
        admit = graphs.lowerings.get("admit")
        admitted = {}
        if admit is not None:
            admitted = outputs_of(admit.graph, admit.module(*feeds(admit.graph, sources)))
        self.prefix = max((state.prefix for state in self.states), default=0)
        self.values = {
            state.step_input: _with_room(state, admitted[state.admit_output], shape[1])
            if state.admit_output
            else torch.zeros(
                [sizes[d] if isinstance(d, str) else d for d in state.shape],
                dtype=getattr(torch, state.dtype),
            )
            for state in self.states
        }

    def __call__(self, tokens: Tensor, length: int) -> dict[Role, Tensor]:
        """LOGITS and EMIT of one call.

        Args:
            tokens: (R, T), none of them padding.
            length: Of every row after the call.
        """
        rows, new = tokens.shape
        controls = {
            Role.TOKENS: tokens,
            Role.LENGTHS: torch.full((rows,), length + self.prefix, dtype=torch.int32),
            Role.TOTAL: torch.tensor(length + self.prefix, dtype=torch.int32),
            Role.LAST: torch.full((rows,), new - 1),
            Role.SOURCE: self.source,
        }
        graph = self.step.graph
        feeds = [
            self.values[port.name] if port.role is Role.STATE else controls[port.role]
            for port in graph.inputs
        ]
        outputs = outputs_of(graph, self.step.module(*feeds))
        for state in self.states:
            if state.growth is not Growth.HOLD:
                self.values[state.step_input] = outputs[state.step_output]
        return {
            port.role: outputs[port.name] for port in graph.outputs if port.role is not Role.STATE
        }


def _with_room(state: State, value: Tensor, room: int) -> Tensor:
    """An output of `admit` as `step` takes it: a prefix with room for tokens behind it."""
    return nn.functional.pad(value, (0, 0, 0, room)) if state.prefix else value


def feeds(graph: Graph, by_role: Mapping[Role, Tensor]) -> list[Tensor]:
    """Inputs of a module in the order of its graph."""
    return [by_role[port.role] for port in graph.inputs]


def outputs_of(graph: Graph, outputs: Any) -> dict[str, Tensor]:
    """A module's outputs by the names of its graph."""
    outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
    return {port.name: value for port, value in zip(graph.outputs, outputs, strict=True)}
