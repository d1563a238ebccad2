"""Images as rows of patches (Pix2Struct): random ones, and as `transformers` takes them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
