"""Grounding DINO's layers, in which an image, a text and queries read each other.

Paper: see `grounding_dino.py`, figure 3.

Legend: B batch, T text positions, S vectors of all grids, N queries, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from export.layers.attention.attention import Attention
from export.layers.attention.deformable import DeformableAttention
from export.layers.attention.fused import MASKED_SCORE
from export.layers.attention.heads import Heads
from export.layers.attention.scores import within
from export.layers.attention.windows import Grid
from export.layers.mlp import MLP
from export.models.detectors.grounding_dino_config import Config, Stack
from export.models.detectors.grounding_dino_towers import Phrases, Scene


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
