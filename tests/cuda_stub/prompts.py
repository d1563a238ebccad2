"""Prompts that a twin's bundle takes."""

from __future__ import annotations

import numpy as np

from inference.bundle.manifest import Bundle, Role
from inference.engine.runners.protocol import Prompt


def prompt_of(bundle: Bundle, tokens: int = 3) -> Prompt:
    """A prompt with a source of the bundle's kind."""
    token_ids = np.arange(1, tokens + 1)
    admit = bundle.manifest.graphs.get("admit")
    if admit is None:
        return Prompt(token_ids)
    pixels = admit.input(Role.PIXELS)
    if pixels is not None:
        shape = [size for size in pixels.shape[1:] if isinstance(size, int)]
        return Prompt(token_ids, pixels=np.zeros(shape, np.uint8))
    return Prompt(token_ids, source_ids=np.arange(5))
