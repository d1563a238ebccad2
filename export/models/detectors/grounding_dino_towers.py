"""Grounding DINO's towers: vectors of an image's places and of a text's tokens, and where they are.

Legend: B batch, T text positions, S vectors of all grids, L grids, D width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from export.layers.attention.fused import MASKED_SCORE
from export.layers.attention.scores import within
from export.layers.attention.windows import Grid
from export.models.detectors.grounding_dino_config import GROUPS, Config
from export.models.encoders import bert
from export.models.vision import swin_pyramid

DELIMITERS = (101, 102, 1012, 1029)
"""[CLS], [SEP], "." and "?" of BERT's vocabulary: what ends a phrase, in every checkpoint."""

# ----------------------------------------------------------------------------------------- texts


class Phrases(NamedTuple):
    """Which tokens of a text belong together (§3.4, "sub-sentence level").

    Attributes:
        lengths: (B,) int32.
        positions: (B, T) of each token in its phrase.
        bias: (B, 1, T, T), so that a token attends to its phrase only.
    """

    lengths: Tensor
    positions: Tensor
    bias: Tensor

    @classmethod
    def of(cls, token_ids: Tensor, lengths: Tensor) -> Phrases:
        """(B, T) right-padded, (B,) → as published.

        A delimiter ends the phrase in front of it. What the text's first or last token ends, and
        what nothing ends, is no phrase: its tokens attend to themselves.
        """
        size = token_ids.shape[1]
        place = torch.arange(size)
        inside = within(lengths, size)
        is_end = (token_ids[..., None] == torch.tensor(DELIMITERS)).sum(dim=-1) * inside
        passed = is_end.cumsum(dim=1)
        phrase = passed - is_end  # ends in front of each token
        last = is_end.gather(1, lengths[:, None].long() - 1)
        ended = passed[:, -1:] - last  # by a token that is not the last one
        is_phrase = inside & (phrase < ended) & (phrase >= is_end[:, :1])
        together = (phrase[:, :, None] == phrase[:, None]) & is_phrase[:, None]
        positions = (together & (place[:, None] > place)).sum(dim=-1)
        visible = together | torch.eye(size, dtype=torch.bool)
        return cls(lengths, positions, torch.where(visible, 0.0, MASKED_SCORE)[:, None])


class TextTower(nn.Module):
    """BERT without its pooler, and a projection."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.encoder = bert.Encoder(config.text)
        self.projection = nn.Linear(config.text.width, config.width)

    def forward(self, token_ids: Tensor, phrases: Phrases) -> Tensor:
        """(B, T) → (B, T, D)."""
        bert_ = self.encoder
        x = bert_.tokens(token_ids) + bert_.positions(phrases.positions)
        if bert_.segment_types:
            x = x + bert_.segments.weight[0]
        x = bert_.norm(x)
        for block in bert_.blocks:
            x = block(x, bias=phrases.bias)
        return self.projection(x)


# ------------------------------------------------------------------------------------- positions


def sinusoids(places: Tensor, width: int, base: float) -> Tensor:
    """(…) → (…, width): sines and cosines by turns (Vaswani et al. 2017, §3.5), of 2π · places."""
    exponents = 2 * torch.arange(width // 2) / width
    angles = places[..., None] * (2 * math.pi) / base**exponents
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)


def grid_positions(grid: Grid, width: int, base: float) -> Tensor:
    """(h·w, width): half of it of a place's row, half of its column."""
    rows, columns = (
        sinusoids((torch.arange(size) + 1) / (size + 1e-6), width // 2, base) for size in grid
    )
    rows = rows[:, None].expand(-1, grid[1], -1)
    return torch.cat([rows, columns.expand(grid[0], -1, -1)], dim=-1).flatten(0, 1)


def centres(grid: Grid) -> Tensor:
    """(h·w, 2): centre x and y of each place, in parts of the image."""
    y, x = ((torch.arange(size) + 0.5) / size for size in grid)
    rows, columns = y[:, None].expand(-1, grid[1]), x.expand(grid[0], -1)
    return torch.stack([columns, rows], dim=-1).flatten(0, 1)


# ---------------------------------------------------------------------------------------- images


@dataclass(frozen=True)
class Scene:
    """What the grids of an image's size decide, the same for every image of it.

    Attributes:
        grids: Rows and columns of each.
        positions: (S, D), the vector of each place's grid included.
        places: (S, 2), centre x and y of each, in parts of the image.
        boxes: (S, 4), a box at each: its centre, and sides that double from grid to grid.
    """

    grids: tuple[Grid, ...]
    positions: Tensor
    places: Tensor
    boxes: Tensor

    @classmethod
    def of(cls, grids: Sequence[Grid], vectors: Tensor, base: float) -> Scene:
        """The scene of grids, of each of which `vectors` (L, D) has one."""
        positions, places, boxes = [], [], []
        for number, grid in enumerate(grids):
            positions.append(grid_positions(grid, vectors.shape[1], base) + vectors[number])
            places.append(centres(grid))
            boxes.append(functional.pad(places[-1], (0, 2), value=0.05 * 2**number))
        return cls(tuple(grids), torch.cat(positions), torch.cat(places), torch.cat(boxes))


class Grids(nn.Module):
    """The image tower's grids, and smaller ones, as vectors of one width."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.tower = swin_pyramid.Pyramid(config.image)
        read, width = config.image.widths, config.width
        made: list[nn.Module] = [nn.Conv2d(given, width, kernel_size=1) for given in read]
        for place in range(len(read), config.grids):
            given = read[-1] if place == len(read) else width
            made.append(nn.Conv2d(given, width, kernel_size=3, stride=2, padding=1))
        self.convolutions = nn.ModuleList(made)
        self.norms = nn.ModuleList(nn.GroupNorm(GROUPS, width) for _ in made)

    def forward(self, pixels: Tensor) -> tuple[Tensor, list[Grid]]:
        """(B, height, width, 3) uint8 → (B, S, D), and rows and columns of each grid."""
        found = [grid.permute(0, 3, 1, 2) for grid in self.tower.grids(pixels)]
        vectors, grids = [], []
        x = found[-1]  # the first of the smaller grids is made of the tower's last one
        for number, (convolution, norm) in enumerate(
            zip(self.convolutions, self.norms, strict=True)
        ):
            made = norm(convolution(found[number] if number < len(found) else x))
            x = x if number < len(found) else made
            grids.append((made.shape[2], made.shape[3]))
            vectors.append(made.flatten(2).transpose(1, 2))
        return torch.cat(vectors, dim=1), grids
