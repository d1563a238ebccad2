"""Calls as data: what the gateway counts of them is what the engine counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from inference.bundle.inputs import PromptImages
from inference.engine import codec
from inference.generation import Generation, Overrides
from inference.tasks.shared.model_calls import Array, GenerateCall

RULES = Generation(pad_token_id=0, max_new_tokens=4)
ONE, SEVERAL = np.zeros((4, 4, 3), np.uint8), np.zeros((2, 4, 4, 3), np.uint8)
FLOATS = np.zeros((2, 4, 4, 3), np.float32)
SIZES = np.array([[4, 4], [4, 2]], np.int64)
TOKENS = {codec.PROMPT_IDS: np.arange(3), codec.SOURCE_IDS: np.arange(5)}
IMAGES: tuple[dict[str, Array], ...] = (
    {},
    {codec.PIXELS: ONE},
    {codec.PIXELS: SEVERAL},
    {codec.PIXELS: FLOATS, codec.IMAGE_SIZES: SIZES},
)


@pytest.mark.parametrize("names", [(), *((name,) for name in TOKENS), tuple(TOKENS)])
@pytest.mark.parametrize("held", IMAGES)
def test_tokens_of_a_prompt_are_those_that_the_engine_counts(
    names: tuple[str, ...], held: dict[str, Array]
) -> None:
    inputs = {**{name: TOKENS[name] for name in names}, **held}
    request = codec.decode_request(codec.encode_request(inputs, Overrides()), RULES)
    if held and held[codec.PIXELS].ndim == 4:
        request = replace(request, images=PromptImages(positions=2, token_id=3))
    assert GenerateCall("tiny", 1, inputs, Overrides()).prompt_tokens == request.prompt_tokens
