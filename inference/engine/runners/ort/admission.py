"""Initial states of sequences: outputs of the graph `admit`, zeros for states without one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference.bundle.manifest import Growth, Role, Tensor
from inference.engine.runners.ort.sessions import OrtSessions, right_padded
from inference.engine.runners.protocol import Prompt
from inference.engine.state.device import DeviceTensor
from inference.engine.state.group_state import GroupState


def write_initial(
    sessions: OrtSessions, state: GroupState, prompts: Sequence[Prompt], first: int
) -> None:
    """Writes HOLD and REPLACE states of new slots from `first` on, and prefixes of APPEND states.

    REPLACE and APPEND states are written to one row per prompt, [first x width, first x width + m).
    """
    if sessions.manifest.images is None:
        values = _encode(sessions, prompts)
        for arena in state.of(Growth.HOLD):
            assert arena.state.admit_output is not None
            arena.write(first, values[arena.state.admit_output])
    else:
        values = {}
        _write_images(sessions, state, prompts, first)
    start = first * state.width
    for arena in state.of(Growth.APPEND):
        if arena.state.admit_output is not None:
            arena.write(start, values[arena.state.admit_output])
    for arena in state.of(Growth.REPLACE):
        if arena.state.admit_output is None:
            arena.clear(start, start + len(prompts))
        else:
            arena.write(start, values[arena.state.admit_output])


def _write_images(
    sessions: OrtSessions, state: GroupState, prompts: Sequence[Prompt], first: int
) -> None:
    """Writes HOLD states of prompts with images, those with equally many in one call."""
    by_count: dict[int, list[int]] = {}
    for index, prompt in enumerate(prompts):
        by_count.setdefault(prompt.images, []).append(index)
    for count, indices in by_count.items():
        values = _encode(sessions, [prompts[index] for index in indices]) if count else {}
        for arena in state.of(Growth.HOLD):
            assert arena.state.admit_output is not None
            for place, index in enumerate(indices):
                slot = first + index
                if count:
                    read = values[arena.state.admit_output]
                    arena.write(slot, sessions.device.entries(read, place, place + 1))
                else:
                    arena.clear(slot, slot + 1)


def source_input(tensor: Tensor, prompts: Sequence[Prompt]) -> NDArray[Any]:
    """One input of the graphs `admit` and `align` for a batch of prompts."""
    if tensor.role is Role.PIXELS:
        return np.stack([prompt.pixels for prompt in prompts if prompt.pixels is not None])
    sources = [prompt.source_ids for prompt in prompts if prompt.source_ids is not None]
    if tensor.role is Role.SOURCE:
        return np.array([len(ids) for ids in sources], np.int32)
    return right_padded(sources)


def _encode(sessions: OrtSessions, prompts: Sequence[Prompt]) -> dict[str, DeviceTensor]:
    """Outputs of the graph `admit` by name; {} without such a graph."""
    if sessions.admit is None:
        return {}
    manifest = sessions.manifest
    names = [state.admit_output for state in manifest.states if state.admit_output is not None]
    inputs = manifest.graphs["admit"].inputs
    arrays = {tensor.name: source_input(tensor, prompts) for tensor in inputs}
    return dict(zip(names, sessions.device.run(sessions.admit, names, arrays), strict=True))
