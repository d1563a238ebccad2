"""Attention roll-out: how much of each patch reaches the class token through all layers.

Source: Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers", §3 (arXiv 2005.00928).

Legend: B batch, N patches, F tokens in front of them, D width.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from export.layers.blocks import EncoderBlock

RESIDUAL = 0.5
"""Share of a layer's output that is its own input: the residual connection."""


class AttentionRollout(nn.Module):
    """Pixels → the class token's attention to the grid of patches, rolled out over all layers.

    Args:
        tower: Prepared for the image recipe; has `embed`, `blocks`, each an `EncoderBlock`, and
            `positions`, for example `export.models.vision.vit.ViT`.
        leading: F; the patches are behind them.
    """

    def __init__(self, tower: Any, leading: int) -> None:
        super().__init__()
        self.tower = tower
        self.leading = leading
        self.grid = tower.positions.grid

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → (B, rows, columns), each image's sum 1.

        The product of all layers' matrices is needed in its first row alone, so the row is
        multiplied from the last layer to the first.
        """
        x = self.tower.embed(pixels)
        layers = []
        for block in self.tower.blocks:
            assert isinstance(block, EncoderBlock)
            layers.append(block.attention_weights(x))
            x = block(x)
        flow = functional.pad(x.new_ones(1, 1, 1), (0, x.shape[1] - 1))  # the class token itself
        for weights in reversed(layers):
            flow = RESIDUAL * flow + (1 - RESIDUAL) * flow @ weights  # (B, 1, F + N)
        patches = flow[:, 0, self.leading :]
        return (patches / patches.sum(dim=-1, keepdim=True)).unflatten(1, self.grid)
