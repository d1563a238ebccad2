"""Random sources for any generator, by the roles of its inputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from inference.bundle.inputs import PatchGrid
from inference.bundle.manifest import Bundle, Role
from tests.export.patches import random_patches


def source(bundle: Bundle, random: np.random.Generator, length: int) -> dict[str, Any]:
    """Fields of a request: an image, a text of that many tokens, or nothing (language models).

    An encoder that reads an image with its text has both, the image in the middle.
    """
    admit = bundle.manifest.graphs.get("admit")
    if admit is None:
        return {}
    if bundle.manifest.images is not None:
        return interleaved(bundle, random, length)
    pixels = admit.input(Role.PIXELS)
    if pixels:
        shape = [int(size) for size in pixels.shape[1:]]
        drawn: Any = random.integers(0, 256, shape, dtype=np.uint8)
        if pixels.dtype == "float32":
            drawn = random_patches(length, shape)
        fields = {"pixels": drawn}
        held = bundle.manifest.source_image
        if held is not None:
            place = np.repeat(length // 2, held.tokens)
            ids = np.insert(random.integers(3, 40, length), place, held.token_id)
            if (start := bundle.manifest.instruction_start) is not None:
                ids = np.concatenate([start + random.integers(3, 40, 1 + length % 3), ids])
            fields["source_ids"] = ids
        return fields
    return {"source_ids": random.integers(1, 40, length)}


def source_or_prompt(bundle: Bundle, random: np.random.Generator, length: int) -> dict[str, Any]:
    """Fields of a request: a source, or for a language model a prompt of that many tokens."""
    if "admit" not in bundle.manifest.graphs:
        return {"prompt_ids": tuple(random.integers(1, 40, length).tolist())}
    return source(bundle, random, length)


def interleaved(bundle: Bundle, random: np.random.Generator, length: int) -> dict[str, Any]:
    """A prompt of that many tokens, a third of them images, none for one of a single token.

    Where positions of images have axes, a further word stands behind each: `transformers` takes
    neighbours for one image, and behind an image its cache continues each axis by itself.
    """
    images, image = bundle.manifest.images, bundle.manifest.image
    if images.tokens > 1:
        count = length // images.tokens
        ids = random.integers(3, 40, length - count * images.tokens)
        if isinstance(images.grid, PatchGrid):
            ids = np.append(ids, random.integers(3, 40, count))
            places = np.sort(random.choice(len(ids), count, replace=False))
        else:
            places = np.sort(random.integers(0, len(ids) + 1, count))
        ids = np.insert(ids, np.repeat(places, images.tokens), images.token_id)
    else:
        ids, count = random.integers(3, 40, length), length // 3
        ids[random.permutation(length)[:count]] = images.token_id
    pixels = random.integers(0, 256, (count, *image.shape), dtype=np.uint8)
    fields = {"prompt_ids": tuple(ids.tolist()), "pixels": pixels if count else None}
    if bundle.manifest.graphs["admit"].input(Role.SOURCE_TOKENS) is not None:
        fields["source_ids"] = random.integers(1, 40, 2 + length % 5)
    return fields
