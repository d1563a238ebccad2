"""Initial states of sequences: outputs of the graph `admit`, zeros for states without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference.bundle.manifest import Growth, Manifest, Role, Tensor
from inference.engine.runners.ort.image_states import ImageStates
from inference.engine.runners.ort.sessions import OrtSessions, pad_right
from inference.engine.runners.protocol import Prompt
from inference.engine.state.device import DeviceTensor
from inference.engine.state.group_state import GroupState
from inference.errors import InvalidRequest

_IMAGES = 8
"""Encoded in one call, which bounds its memory."""
_NO_TOKENS = np.zeros(0, np.int64)


def write_initial(
    sessions: OrtSessions, state: GroupState, prompts: Sequence[Prompt], first: int
) -> None:
    """Writes HOLD and REPLACE states of new slots from `first` on, and prefixes of APPEND states.

    REPLACE and APPEND states are written to one row per prompt, [first x width, first x width + m).
    """
    if sessions.manifest.images is None:
        values = _encode(sessions, prompts)
        state.write_held(first, values)
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
    """Writes HOLD states of prompts with images; images that are not kept are encoded together.

    What is kept is a copy of what was written.
    """
    keys = [
        [ImageStates.key(image, prompt.source_ids) for image in prompt.images] for prompt in prompts
    ]
    alone = [
        [Prompt(_NO_TOKENS, prompt.source_ids, image[None]) for image in prompt.images]
        for prompt in prompts
    ]
    pixels = dict(zip(chain(*keys), chain(*alone), strict=True))
    kept = {key: sessions.images.get(key) for key in pixels}
    missing = [key for key, found in kept.items() if found is None]
    encoded = _encode_images(sessions, state, [pixels[key] for key in missing])
    states = kept | dict(zip(missing, encoded, strict=True))
    arenas = state.of(Growth.HOLD)
    for slot, held in enumerate(keys, first):
        for arena in arenas:
            arena.clear(slot, slot + 1)
        start = stop = 0
        for key in held:
            found = states[key]
            assert found is not None
            for arena, value in zip(arenas, found, strict=True):
                assert arena.axis is not None
                arena.write_positions(slot, start, value)
                stop = start + value.shape[arena.axis]
            if kept[key] is None:
                copies = [arena.read_positions(slot, start, stop) for arena in arenas]
                sessions.images.put(key, copies)
            start = stop


def _encode_images(
    sessions: OrtSessions, state: GroupState, images: Sequence[Prompt]
) -> Iterator[Sequence[DeviceTensor]]:
    """The states of each image, (1, …), in the order of the arenas.

    Args:
        images: Prompts of one image.
    """
    for batch in _of_one_size(images):
        values = _encode(sessions, batch)
        named = [values[arena.state.admit_output or ""] for arena in state.of(Growth.HOLD)]
        for place in range(len(batch)):
            yield [sessions.device.entries(value, place, place + 1) for value in named]


def _of_one_size(images: Sequence[Prompt]) -> Iterator[Sequence[Prompt]]:
    """Neighbours whose images have one size, at most `_IMAGES` of them."""
    for _, group in groupby(images, key=lambda image: image.images[0].shape):
        same = list(group)
        for start in range(0, len(same), _IMAGES):
            yield same[start : start + _IMAGES]


def source_input(tensor: Tensor, prompts: Sequence[Prompt]) -> NDArray[Any]:
    """One input of the graphs `admit` and `align` for a batch of prompts."""
    if tensor.role is Role.PIXELS:
        return np.stack([prompt.pixels for prompt in prompts if prompt.pixels is not None])
    sources = [prompt.source_ids for prompt in prompts if prompt.source_ids is not None]
    if tensor.role in (Role.SOURCE, Role.LENGTHS):
        return np.array([len(ids) for ids in sources], np.int32)
    return pad_right(sources)


def align_tokens(
    manifest: Manifest,
    prompt: Prompt,
    token_ids: Sequence[int],
    run: Callable[[dict[str, NDArray[Any]]], NDArray[np.float32]],
) -> NDArray[np.float32]:
    """Attention of each generated token to the source, (tokens, S), as `Runner.align` returns it.

    Args:
        run: Inputs of the graph `align` → its output for all tokens, (1, T, S).

    Raises:
        InvalidRequest: the model has no such graph.
    """
    graph = manifest.graphs.get("align")
    if graph is None:
        raise InvalidRequest("this model has no alignment", field="return_alignment")
    forced = np.array([*prompt.token_ids, *token_ids[:-1]], np.int64)[None]
    arrays = {
        tensor.name: forced if tensor.role is Role.TOKENS else source_input(tensor, [prompt])
        for tensor in graph.inputs
    }
    return run(arrays)[0, len(prompt.token_ids) - 1 :]


def _encode(sessions: OrtSessions, prompts: Sequence[Prompt]) -> dict[str, DeviceTensor]:
    """Outputs of the graph `admit` by name; {} without such a graph."""
    if sessions.admit is None:
        return {}
    manifest = sessions.manifest
    names = [state.admit_output for state in manifest.states if state.admit_output is not None]
    inputs = manifest.graphs["admit"].inputs
    arrays = {tensor.name: source_input(tensor, prompts) for tensor in inputs}
    return dict(zip(names, sessions.device.run(sessions.admit, names, arrays), strict=True))
