"""Random sources for any generator, by the roles of its inputs: texts, images, rows of patches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inference.bundle.inputs import ImageSpec, PatchGrid, Regions
from inference.bundle.manifest import Bundle, Role

_GRIDS = ((3, 4), (2, 5), (1, 1), (7, 1))


def random_patches(number: int, shape: Sequence[int]) -> NDArray[np.float32]:
    """(N, A + 1, 3) of an image whose rows and columns of patches follow from its number."""
    random = np.random.default_rng(number)
    rows, columns = _GRIDS[number % len(_GRIDS)]
    patches = np.zeros(shape, np.float32)
    count = min(rows * columns, shape[0])
    patches[:count, :-1] = random.normal(size=(count, shape[1] - 1, 3))
    patches[:count, -1, 0] = np.repeat(np.arange(1, rows + 1), columns)[:count]
    patches[:count, -1, 1] = np.tile(np.arange(1, columns + 1), rows)[:count]
    return patches


def flattened_patches(pixels: Tensor) -> dict[str, Tensor]:
    """Inputs of `transformers` for (B, N, A + 1, 3) patches."""
    flat = torch.cat([pixels[:, :, -1, :2], pixels[:, :, :-1].flatten(2)], dim=-1)
    return {"flattened_patches": flat, "attention_mask": (flat[..., 0] > 0).float()}


def spatial_patches(pixels: Tensor, image: ImageSpec) -> dict[str, Tensor]:
    """The same of patches whose grid `transformers` takes beside them, and which a graph norms."""
    mean, std = torch.tensor(image.mean), torch.tensor(image.std)
    places = pixels[:, :, -1]
    return {
        "pixel_values": ((pixels[:, :, :-1] * image.rescale - mean) / std).flatten(2),
        "pixel_attention_mask": (places[..., 0] > 0).int(),
        "spatial_shapes": places[..., :2].amax(dim=1).long(),
    }


def region_inputs(pixels: Tensor, regions: Regions) -> dict[str, Tensor]:
    """The same of (B, R, 1, F) regions, or (B, R, 1, F + 4) with boxes."""
    features, boxes = pixels.squeeze(2).tensor_split([regions.features], dim=-1)
    if not regions.has_boxes:
        return {"visual_embeds": features}
    return {"visual_feats": features, "visual_pos": boxes}


def source(bundle: Bundle, random: np.random.Generator, length: int) -> dict[str, Any]:
    """Fields of a request: an image, a text of that many tokens, or nothing (language models).

    An encoder that reads an image with its text has both, the image in the middle; one that reads
    several has none, one or two.
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
            places = [length // 2]
            if bundle.manifest.takes_image_lists:
                places = list(range(length % 3))
                fields = {"pixels": random.integers(0, 256, (len(places), *shape), np.uint8)}
            place = np.repeat(places, held.tokens)
            ids = np.insert(random.integers(3, 40, length), place.astype(int), held.token_id)
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
