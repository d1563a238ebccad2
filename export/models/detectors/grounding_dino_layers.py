"""Grounding DINO's layers, in which an image, a text and queries read each other.

Paper: see `grounding_dino.py`, figure 3.

Legend: B batch, T text positions, S vectors of all grids, L grids, N queries, D width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from export.layers.attention.attention import Attention, within
from export.layers.attention.deformable import DeformableAttention
from export.layers.attention.fused import MASKED_SCORE
from export.layers.attention.heads import Heads
from export.layers.attention.windows import Grid
from export.layers.blocks import MLP
from export.models.detectors.grounding_dino_config import GROUPS, Config, Stack
from export.models.encoders import bert
from export.models.vision import swin_pyramid


class MixedAttention(Attention):
    """Attention whose queries, keys and values are made of different vectors."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        lengths: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """(B, N, D), (B, T, D), (B, T, D) → (B, N, D).

        Args:
            lengths: (B,) int32, keys that are no padding.
            bias: Of the scores, (B, 1, N, T).
        """
        query, key, value = self.query(query), self.key(key), self.value(value)
        return self.out(self.mix(query, key, value, lengths, bias))


class MutualAttention(MixedAttention):
    """An image and a text attend to each other, by the same scores (§3.2, as in GLIP)."""

    def __init__(self, width: int, stack: Stack) -> None:
        inner, count = stack.mlp_width // 2, stack.heads // 2
        super().__init__(Heads(width, count, head_width=inner // count))
        self.image_value = nn.Linear(width, inner)
        self.text_out = nn.Linear(inner, width)

    def both(self, image: Tensor, text: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S, D) and (B, T, D) → what each has of the other, of the same shapes."""
        query, key = self.query(image), self.key(text)
        of_text = self.mix(query, key, self.value(text), lengths)
        return self.out(of_text), self.text_out(self.mix(key, query, self.image_value(image)))


class Read(NamedTuple):
    """What the decoder reads: (B, S, D), (B, T, D), and the texts' lengths (B,)."""

    image: Tensor
    text: Tensor
    lengths: Tensor

    def scores(self, x: Tensor) -> Tensor:
        """(B, N, D) → (B, N, T), of each vector with each token."""
        return x @ self.text.transpose(1, 2)

    def best(self, x: Tensor) -> Tensor:
        """(B, N, D) → (B, N), the largest of the scores."""
        inside = within(self.lengths, self.text.shape[1])[:, None]
        return self.scores(x).masked_fill(~inside, MASKED_SCORE).amax(dim=-1)


class EncoderLayer(nn.Module):
    """Image and text attend to each other, then each to itself (figure 3, block 2)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, stack = config.width, config.encoder
        make_norm = partial(nn.LayerNorm, width, eps=config.norm_epsilon)
        self.fused_image_norm, self.fused_text_norm = make_norm(), make_norm()
        self.fusion = MutualAttention(width, stack)
        self.image_scale = nn.Parameter(torch.zeros(width))
        self.text_scale = nn.Parameter(torch.zeros(width))
        self.text_attention = MixedAttention(Heads(width, stack.heads // 2))
        self.text_attention_norm = make_norm()
        self.text_mlp = MLP(width, stack.mlp_width // 2, config.activation)
        self.text_mlp_norm = make_norm()
        self.attention = DeformableAttention(width, stack.heads, config.grids, stack.points)
        self.attention_norm = make_norm()
        self.mlp = MLP(width, stack.mlp_width, config.activation)
        self.mlp_norm = make_norm()

    def forward(
        self, image: Tensor, text: Tensor, scene: Scene, phrases: Phrases, positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(B, S, D) and (B, T, D) → the same.

        Args:
            positions: Of the text's tokens, (B, T, D).
        """
        image, text = self.fused_image_norm(image), self.fused_text_norm(text)
        of_text, of_image = self.fusion.both(image, text, phrases.lengths)
        image = image + self.image_scale * of_text
        text = text + self.text_scale * of_image

        placed = text + positions
        attended = self.text_attention(placed, placed, text, bias=phrases.bias)
        text = self.text_attention_norm(text + attended)
        text = self.text_mlp_norm(text + self.text_mlp(text))

        places = scene.places[None]
        attended = self.attention(image + scene.positions, places, image, scene.grids)
        image = self.attention_norm(image + attended)
        return self.mlp_norm(image + self.mlp(image)), text


class DecoderLayer(nn.Module):
    """Queries attend to each other, to the text and to the image (figure 3, block 3)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, stack = config.width, config.decoder
        make_norm = partial(nn.LayerNorm, width, eps=config.norm_epsilon)
        self.attention = MixedAttention(Heads(width, stack.heads))
        self.attention_norm = make_norm()
        self.text_attention = MixedAttention(Heads(width, stack.heads))
        self.text_attention_norm = make_norm()
        self.image_attention = DeformableAttention(width, stack.heads, config.grids, stack.points)
        self.image_attention_norm = make_norm()
        self.mlp = MLP(width, stack.mlp_width, config.activation)
        self.mlp_norm = make_norm()

    def forward(
        self, x: Tensor, positions: Tensor, boxes: Tensor, read: Read, grids: Sequence[Grid]
    ) -> Tensor:
        """(B, N, D) → (B, N, D).

        Args:
            positions: Of the queries' boxes, (B, N, D).
            boxes: (B, N, 4), in parts of the image.
        """
        placed = x + positions
        x = self.attention_norm(x + self.attention(placed, placed, x))
        attended = self.text_attention(x + positions, read.text, read.text, read.lengths)
        x = self.text_attention_norm(x + attended)
        attended = self.image_attention(x + positions, boxes, read.image, grids)
        x = self.image_attention_norm(x + attended)
        return self.mlp_norm(x + self.mlp(x))


class Head(nn.Sequential):
    """Linear layers with a ReLU between them."""

    def __init__(self, *widths: int) -> None:
        layers: list[nn.Module] = []
        for given, made in pairwise(widths):
            layers += [nn.Linear(given, made), nn.ReLU()]
        super().__init__(*layers[:-1])


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
