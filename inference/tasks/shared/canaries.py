"""The smallest calls that exercise a model, for readiness checks."""

from __future__ import annotations

import numpy as np

from inference.bundle.manifest import Role
from inference.engine.codec import PIXELS, PROMPT_IDS, SOURCE_IDS
from inference.generation import Overrides
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.model_calls import Array, GenerateCall, InferCall

_TEXT = "a"


def generator_canary(model: LoadedModel) -> GenerateCall:
    """One generated token: from an image where the model takes images, else from a short text."""
    inputs: dict[str, Array]
    images = model.manifest.images
    if images is not None:
        inputs = {
            PIXELS: np.zeros((1, *model.image.shape), np.uint8),
            PROMPT_IDS: np.array(images.expanded([images.token_id]), dtype=np.int64),
        }
        if model.reads_instructions:
            inputs[SOURCE_IDS] = np.zeros(1, np.int64)
    elif model.manifest.image is not None:
        shape = (1, *model.image.shape) if model.manifest.takes_image_lists else model.image.shape
        inputs = {PIXELS: np.zeros(shape, model.image.dtype)}
        source = model.manifest.source_image
        if source is not None:
            inputs[SOURCE_IDS] = np.array(source.expanded([source.token_id]), dtype=np.int64)
    else:
        name = SOURCE_IDS if model.reads_source else PROMPT_IDS
        ids = model.tokenizer.encode(_TEXT) or [model.pad_token_id]
        inputs = {name: np.array(ids, dtype=np.int64)}
    options = Overrides(num_beams=1, num_return_sequences=1, max_new_tokens=1)
    return model.generate_call(inputs, options)


def part_canaries(model: LoadedModel, *parts: tuple[Role, Role]) -> list[InferCall]:
    """A batch of one for each stateless part that the bundle has.

    Args:
        parts: TOKENS or PIXELS, which a part takes, and the output that it returns.
    """
    found = (_part_canary(model, takes, returns) for takes, returns in parts)
    return [call for call in found if call is not None]


def _part_canary(model: LoadedModel, takes: Role, returns: Role) -> InferCall | None:
    part = model.manifest.part(takes=takes, returns=returns)
    if part is None:
        return None
    given: dict[Role, Array] = {}
    if part.graph.input(Role.PIXELS) is not None:
        frames = () if part.graph.frames is None else (part.graph.frames,)
        given[Role.PIXELS] = np.zeros((1, *frames, *model.image.shape), model.image.dtype)
    for role in (Role.CONDITIONS, Role.HIDDEN):
        if (vectors := part.graph.input(role)) is not None:
            sizes = [size if isinstance(size, int) else 1 for size in vectors.shape]
            given[role] = np.zeros(sizes, np.float32)
    if part.graph.input(Role.TOKENS) is not None:
        encoded = model.tokenizer.encode(_TEXT)
        padding = model.padding(part.graph)
        ids = padding.padded([encoded], padding.width or len(encoded))
        one = np.zeros((1, 1), dtype=np.int64)
        given |= {
            Role.TOKENS: ids,
            Role.LENGTHS: np.array([len(encoded)], dtype=np.int32),
            Role.SEGMENTS: np.zeros_like(ids),
            Role.POSITIONS: one,
            Role.CHOICES: one,
        }
    inputs = {role: array for role, array in given.items() if part.graph.input(role)}
    return InferCall.of(part, inputs, returns=(returns,))
