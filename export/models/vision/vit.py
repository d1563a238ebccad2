"""Vision Transformer, as an image encoder.

Paper: Dosovitskiy et al. 2020, "An Image is Worth 16x16 Words", §3.1 (arXiv 2010.11929).
Checkpoints: the network of `vit_classifier.py` and `deit.py`, and the encoder of
`model_type: vision-encoder-decoder` folders (`model_type: vit`).

Legend: B batch, N patches, F tokens in front of them, D width.

Differences from `transformers`: positions are interpolated whenever the image recipe's size is not
the checkpoint's, once, before export; the pooler, which no decoder reads, is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from export.config.config_reader import ConfigReader, key
from export.config.weight_names import VIT_ATTENTION, Entry, Rename, projections
from export.layers.attention.heads import Heads
from export.layers.blocks import BlockConfig, EncoderBlock, make_encoder_blocks
from export.layers.images.vision import GridPositions, PatchEmbedding, PixelNorm, patch_grid
from inference.bundle.inputs import ImageSpec

# ---------------------------------------------------------------------------------------- config


@dataclass(frozen=True, kw_only=True)
class Config(BlockConfig):
    """The network's part of `config.json`; sizes are (height, width)."""

    supported = {"num_channels": 3}
    image: tuple[int, int] = key("image_size", 224)
    patch: tuple[int, int] = key("patch_size", 16)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return patch_grid(self.image, self.patch)

    @property
    def positions(self) -> int:
        """Patches and the class token."""
        return self.grid[0] * self.grid[1] + 1


def read_config(reader: ConfigReader, **given: Any) -> Config:
    """The configuration; what we lack is refused.

    Args:
        given: Fields that `config.json` has in another form.
    """
    reader.refuse_unless(head_dim=None)
    heads = reader.read(Heads, bias=reader.flag("qkv_bias", True))
    return reader.read(Config, heads=heads, **given)


# --------------------------------------------------------------------------------------- network


class ViT(nn.Module):
    """Pixels → one vector a patch, and one for the class token in front."""

    def __init__(self, config: Config, leading: int = 1) -> None:
        super().__init__()
        self.config = config
        self.pixel_norm: nn.Module = nn.Identity()
        self.patches = PatchEmbedding(config.width, config.patch, bias=True)
        self.class_token = nn.Parameter(torch.zeros(1, 1, config.width))
        self.positions = GridPositions(config.width, config.grid, leading)
        self.blocks = make_encoder_blocks(config, is_norm_first=True)  # §3.1
        self.norm = nn.LayerNorm(config.width, eps=config.norm_epsilon)

    def prepare(self, image: ImageSpec) -> None:
        """Takes prepared uint8 pixels from now on, not a normalised image.

        Raises:
            CheckpointError: positions cannot be interpolated to the recipe's size.
        """
        self.positions.resize(patch_grid(image.shape[:2], self.config.patch))
        self.pixel_norm = PixelNorm(image)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8, or (B, 3, height, width) normalised → (B, F + N, D)."""
        return self.norm(self.blocks[-1](self._earlier(pixels)))

    def first(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → (B, 1, D), of the class token."""
        last = self.blocks[-1]
        assert isinstance(last, EncoderBlock)
        return self.norm(last.first(self._earlier(pixels)))

    def _earlier(self, pixels: Tensor) -> Tensor:
        """The last block's input, (B, F + N, D)."""
        x = self.embed(pixels)
        for block in self.blocks[:-1]:
            x = block(x)
        return x

    def embed(self, pixels: Tensor) -> Tensor:
        """The blocks' input, (B, F + N, D)."""
        patches = self.patches(self.pixel_norm(pixels))
        leading = self.leading_tokens().expand(patches.shape[0], -1, -1)
        return torch.cat([leading, patches], dim=1) + self.positions()

    def leading_tokens(self) -> Tensor:
        """The learned tokens in front of the patches, (1, F, D)."""
        return self.class_token


# ----------------------------------------------------------------------------------------- names

_BLOCK = "encoder.layer.*"

RENAME = Rename(
    {
        "embeddings.cls_token": "class_token",
        "embeddings.position_embeddings": "positions.table",
        "embeddings.mask_token": None,
        "embeddings.patch_embeddings.projection": "patches.projection",
        f"{_BLOCK}.layernorm_before": "blocks.*.attention_norm",
        **projections(f"{_BLOCK}.attention", "blocks.*.attention", VIT_ATTENTION),
        f"{_BLOCK}.layernorm_after": "blocks.*.mlp_norm",
        f"{_BLOCK}.intermediate.dense": "blocks.*.mlp.up",
        f"{_BLOCK}.output.dense": "blocks.*.mlp.down",
        "layernorm": "norm",
        "pooler.dense": None,
    }
)


def rename(theirs: str, ours: str) -> dict[str, Entry]:
    """The table below a prefix on either side."""
    return RENAME.prefixed(theirs, ours)
