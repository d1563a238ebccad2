"""Gated cross-attention: layers between those of a language model, which read images.

Paper: Alayrac et al. 2022, "Flamingo", §2.2 and figure 4 (arXiv 2204.14198): the output of both
sub-layers is multiplied by tanh(α), so that with α = 0 the language model is as it was; §2.3: a
token attends to the last image before it, and to none where there is none.

Legend: B sequences, R rows (B x W beams), T new positions, S source positions (those of all images
of a sequence, one image after the other), L positions of one image, D width, H heads, K width of a
head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from export.layers.attention.attention import CrossAttention, attend, repeat_groups
from export.layers.attention.fused import MASKED_SCORE, multi_head_attention
from export.layers.attention.heads import Heads, KeyValue


@dataclass(frozen=True)
class ImageMask:
    """The image that each token of a call attends to."""

    bias: Tensor
    """(B, 1, W·T, S): of scores; 0 at its image's positions, `MASKED_SCORE` elsewhere."""
    gate: Tensor
    """(R, T, 1): 1, or 0 for a token that attends to no image."""

    @classmethod
    def of(cls, images: Tensor, positions: int, room: int) -> ImageMask:
        """The mask of tokens by the number of their image.

        Args:
            images: (B, W, T) int64, from 1; 0 for none.
            positions: L.
            room: S.
        """
        owner = torch.arange(room, device=images.device) // positions + 1
        chosen = images.reshape(images.shape[0], -1)[:, None, :, None]  # (B, 1, W·T, 1)
        bias = torch.where(owner == chosen, 0.0, MASKED_SCORE)
        return cls(bias, (images > 0).float().reshape(-1, images.shape[2], 1))


class ImageAttention(CrossAttention):
    """Tokens attend to the images of their sequence, as a mask lets them.

    Args:
        source_width: Width of an image's vectors.
        norm: Width → a norm of each head's queries, and one of its keys; none when not given.
    """

    def __init__(
        self, heads: Heads, source_width: int, norm: Callable[[int], nn.Module] | None = None
    ) -> None:
        super().__init__(heads, source_width)
        self.query_norm = norm(heads.width) if norm else nn.Identity()
        self.key_norm = norm(heads.width) if norm else nn.Identity()

    def project_kv(self, source: Tensor) -> KeyValue:
        """(B, S, D) → keys and values, each (B, G, S, K)."""
        key = self.normalise_heads(self.key(source), self.key_norm)
        return self.split(key), self.split(self.value(source))

    def read(self, x: Tensor, images: KeyValue, mask: ImageMask) -> Tensor:
        """(R, T, D) → (R, T, D); rows of one sequence share its images.

        Args:
            images: What `project_kv` computed.
        """
        key, value = images
        query = self.normalise_heads(self.query(x), self.query_norm)
        query = query.reshape(key.shape[0], -1, self.query.out_features)  # (B, W·T, H·K)
        if self.is_fused:
            key, value = (repeat_groups(each, self.heads) for each in images)
            mixed = multi_head_attention(self.heads, query, key, value, bias=mask.bias)
        else:
            mixed = self.join(attend(self.heads, self.split(query), key, value, bias=mask.bias))
        return self.out(mixed.reshape(*x.shape[:2], -1)) * mask.gate


class GatedCrossBlock(nn.Module):
    """Attention to images and MLP, each behind a norm, gated, and with a residual.

    Args:
        gate: Whether α is one number or one for each of D.
    """

    def __init__(
        self,
        attention: ImageAttention,
        mlp: nn.Module,
        norm: Callable[[], nn.Module],
        gate: Literal["float", "vector"],
    ) -> None:
        super().__init__()
        width = attention.heads.model_width
        shape = (1,) if gate == "float" else (1, 1, width)
        self.attention = attention
        self.attention_norm = norm()
        self.attention_gate = nn.Parameter(torch.zeros(shape))
        self.mlp = mlp
        self.mlp_norm = norm()
        self.mlp_gate = nn.Parameter(torch.zeros(shape))

    def forward(self, x: Tensor, images: KeyValue, mask: ImageMask) -> Tensor:
        """(R, T, D) → (R, T, D)."""
        read = self.attention.read(self.attention_norm(x), images, mask)
        x = x + self.attention_gate.tanh() * read
        return x + self.mlp_gate.tanh() * self.mlp(self.mlp_norm(x))
