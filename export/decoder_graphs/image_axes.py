"""Positions in three axes: time, height and width of the images in a row (M-RoPE).

Paper: Wang et al. 2024, "Qwen2-VL", §2.1 (arXiv 2409.12191). A word is at one position in all axes.
The vectors of an image have its first position in time, and differ in height and width; what
follows continues behind its longer side, so a token's position is not its place in the row.

`admit` returns three offsets and a shift for each vector of an image. `step` adds them to the
places, which follow from a row's length and its count of image tokens: the engine passes nothing.

Legend: B sequences, R rows (B x W beams), T new positions, I images of a sequence, L vectors of an
image, S source positions (I · L of the sequence with the most images).

Decision D104.
"""

from __future__ import annotations

import torch
from torch import Tensor

AXES = 3
"""Time, height and width."""


def image_places(rows: int, columns: int) -> Tensor:
    """(L, 4) int64 of an image of rows and columns of vectors: three offsets, and a shift.

    The shift, which the first vector has alone, is by how much positions behind the image differ
    from places: an image takes as many positions as its longer side. The offsets are from a
    vector's place, shift included, to its position in each axis.
    """
    number = torch.arange(rows * columns)
    row = torch.arange(rows)[:, None].expand(rows, columns).flatten()
    column = torch.arange(columns)[None].expand(rows, columns).flatten()
    shift = torch.maximum(row, column).max() + 1 - rows * columns
    start = -number - shift  # from a vector's place back to the image's first position
    axes = [start, start + row, start + column]
    return torch.stack([*axes, torch.where(number == 0, shift, 0)], dim=-1)


def axis_positions(
    positions: Tensor, passed: Tensor, is_image: Tensor, source: Tensor, places: Tensor
) -> Tensor:
    """(3, R, T) int64: the position of each new token in each axis.

    Args:
        positions: (R, T) places in the rows.
        passed: (R, T) image tokens of each row, each new token included.
        is_image: (R, T, 1) which tokens stand for images.
        source: (B,) vectors of each sequence's images; tokens beyond them are words.
        places: (B, S, 4), see `image_places`.
    """
    count, room = places.shape[0], places.shape[1]
    shifts = places[..., AXES].cumsum(dim=1)  # (B, S): behind each vector
    number = passed.reshape(count, -1).minimum(source.long()[:, None])  # (B, W·T), from 1
    first = torch.arange(count, device=places.device)[:, None] * room
    index = (first + (number - 1).clamp(min=0, max=room - 1)).flatten()
    shift = shifts.flatten()[index] * (number > 0).flatten()  # (R·T,)
    offsets = places.flatten(0, 1)[index][:, :AXES] * is_image.reshape(-1, 1)  # (R·T, 3)
    moved = (positions.flatten() + shift)[:, None] + offsets
    return moved.T.reshape(AXES, *positions.shape)
