"""What stands on an image network: its vectors pooled into one, and class scores from that.

Legend: B batch, F tokens in front of the patches, N patches, C classes, D width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from export.layers.activation import activation
from inference.bundle.inputs import ImageSpec


def mean_vector(vectors: Tensor) -> Tensor:
    """(B, N, D) → (B, D).

    A product with 1 / N: ONNX Runtime sums `ReduceMean` over this axis in an order that depends on
    B, and takes a transposition in front of it away.
    """
    count = vectors.shape[1]
    return (vectors.new_full((1, count), 1 / count) @ vectors).squeeze(1)


class ClassToken(nn.Module):
    """The first vector: (B, F + N, D) → (B, D)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, vectors: Tensor) -> Tensor:
        """The class token's."""
        return vectors[:, 0]


class Mean(nn.Module):
    """The mean vector: (B, N, D) → (B, D)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, vectors: Tensor) -> Tensor:
        """Over all positions."""
        return mean_vector(vectors)


class ClassTokenAndMean(nn.Module):
    """The class token's vector beside the mean of the patches': (B, F + N, D) → (B, 2·D)."""

    def __init__(self, width: int, leading: int) -> None:
        super().__init__()
        self.width = 2 * width
        self.leading = leading

    def forward(self, vectors: Tensor) -> Tensor:
        """Tokens in front of the patches do not enter the mean."""
        return torch.cat([vectors[:, 0], mean_vector(vectors[:, self.leading :])], dim=-1)


class Pooler(nn.Module):
    """A layer on the class token's vector, where the checkpoint has one: (B, F + N, D) → (B, P).

    Checkpoints that were trained without it (DINO) hold no such tensors, and nothing else shows it:
    the layer starts as zeros, and zeros mean that the class token's vector is the pooled one.
    """

    def __init__(self, width: int, output_width: int, activation_name: str) -> None:
        super().__init__()
        self.dense = nn.Linear(width, output_width)
        self.activation = activation(activation_name)
        nn.init.zeros_(self.dense.weight)
        nn.init.zeros_(self.dense.bias)
        self.width = output_width
        self.is_present = True

    def prepare(self) -> None:
        """Looks whether a checkpoint's weights are there."""
        self.is_present = bool(self.dense.weight.any())
        self.width = self.dense.out_features if self.is_present else self.dense.in_features

    def forward(self, vectors: Tensor) -> Tensor:
        """Of the class token."""
        first = vectors[:, 0]
        return self.activation(self.dense(first)) if self.is_present else first


class ImageModel(nn.Module):
    """Pixels → logits (B, C), or without a head an embedding (B, D) of length one.

    Args:
        network: Pixels (B, height, width, 3) uint8 → vectors (B, F + N, D), with `prepare`, for
            example `export.models.vision.vit.ViT`. Its `first`, if it has it, computes the class
            token's vector alone, (B, 1, D).
        pool: Vectors → one, (B, `width`).
        head: The pooled vector → (B, C); None for an embedding.
        classes: C.
    """

    def __init__(self, network: Any, pool: Any, head: nn.Module | None, classes: int) -> None:
        super().__init__()
        self.network = network
        self.pool = pool
        self.head = head
        self.classes = classes

    @property
    def output_width(self) -> int:
        """C or D."""
        return int(self.pool.width) if self.head is None else self.classes

    def prepare(self, image: ImageSpec) -> None:
        """Takes prepared uint8 pixels from now on; see the network's own `prepare`."""
        self.network.prepare(image)
        if isinstance(self.pool, Pooler):
            self.pool.prepare()

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → (B, C) or (B, D)."""
        network = self.network
        if isinstance(self.pool, ClassToken | Pooler) and hasattr(network, "first"):
            pooled = self.pool(network.first(pixels))
        else:
            pooled = self.pool(network(pixels))
        if self.head is None:
            return functional.normalize(pooled, dim=-1)
        return self.head(pooled)
