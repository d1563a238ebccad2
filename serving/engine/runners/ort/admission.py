"""What sequences start from: the `admit` graph over ONNX Runtime, zeros where it says nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from serving.bundle import Growth, Role, Tensor
from serving.engine.runners.protocol import Prompt
from serving.engine.state.group_state import FloatArray, GroupState

if TYPE_CHECKING:
    from serving.engine.runners.ort.runner import OrtRunner


def write_initial(
    runner: OrtRunner, state: GroupState, prompts: Sequence[Prompt], first: int
) -> None:
    """HOLD and REPLACE of new slots from `first` on: what `admit` computes, zeros otherwise.

    REPLACE goes to one row a prompt, [first x width, first x width + m).
    """
    values = _encode(runner, prompts)
    for arena in state.of(Growth.HOLD):
        assert arena.state.admit_output is not None
        arena.write(first, values[arena.state.admit_output])
    start = first * state.width
    for arena in state.of(Growth.REPLACE):
        if arena.state.admit_output is None:
            arena.clear(start, start + len(prompts))
        else:
            arena.write(start, values[arena.state.admit_output])


def _encode(runner: OrtRunner, prompts: Sequence[Prompt]) -> dict[str, FloatArray]:
    """Outputs of the `admit` graph that states start from, by name; {} without such a graph."""
    if runner.admit is None:
        return {}
    states = runner.manifest.states
    names = [state.admit_output for state in states if state.admit_output is not None]
    feeds = {
        tensor.name: feed(tensor, prompts) for tensor in runner.manifest.graphs["admit"].inputs
    }
    return dict(zip(names, runner.admit.run(names, feeds), strict=True))


def feed(tensor: Tensor, prompts: Sequence[Prompt]) -> NDArray[np.generic]:
    """One input of the `admit` graph for a batch of prompts."""
    if tensor.role is Role.PIXELS:
        return np.stack([prompt.pixels for prompt in prompts if prompt.pixels is not None])
    sources = [prompt.source_ids for prompt in prompts if prompt.source_ids is not None]
    if tensor.role is Role.SOURCE:
        return np.array([len(ids) for ids in sources], np.int32)
    return right_padded(sources)


def right_padded(rows: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Rows of ids as (rows, longest); 0 fills, which any vocabulary has and lengths mask."""
    padded = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)] = row
    return padded
