"""BEiT: a ViT with relative positions in its scores, pre-trained to find visual tokens.

Paper: Bao et al. 2021, "BEiT: BERT Pre-Training of Image Transformers", §2 (arXiv 2106.08254).
Checkpoints: `microsoft/beit-*` and others of `model_type: beit`: classes
`BeitForImageClassification` and `BeitModel`, with a bias of each layer's own.

Legend: B batch, N patches, H heads, D width.

Differences from `transformers`: pixels come as uint8; embeddings have length one; images have the
one size whose relative positions the checkpoint has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Names
from export.layers.attention.windows import relative_index
from export.layers.images.image_heads import ClassToken, mean_vector
from export.layers.images.vision import PixelNorm, check_recipe
from export.models.vision import vit
from export.text_encoders.image_graphs import Head, image_family
from inference.bundle.inputs import ImageSpec
from inference.errors import CheckpointError

# ---------------------------------------------------------------------------------------- config


@dataclass(frozen=True, kw_only=True)
class Config(vit.Config):
    """The network's part of `config.json`."""

    supported = vit.Config.supported | {
        "use_absolute_position_embeddings": False,
        "use_shared_relative_position_bias": False,
    }
    is_averaged: bool = key("use_mean_pooling", True)
    """Whether an image is the mean of its patches, else its class token."""


def read_config(reader: ConfigReader) -> Config:
    """The configuration; what we lack is refused."""
    config: Config = vit.read_config(reader, Config)
    if not reader.flag("use_relative_position_bias", False):
        raise CheckpointError(
            f"{reader.place}: use_relative_position_bias = false is not supported, only true is"
        )
    if reader.number("layer_scale_init_value", 0.1) <= 0:
        raise CheckpointError(f"{reader.place}: layer_scale_init_value must be over 0")
    if config.grid[0] != config.grid[1]:
        raise CheckpointError(f"{reader.place}: {config.grid} patches are not a square")
    return config


# --------------------------------------------------------------------------------------- network


def position_index(side: int) -> Tensor:
    """Row of the table of biases for each pair of positions, (1 + N, 1 + N).

    Behind the rows of pairs of patches are those of the class token's attention to patches, of
    theirs to it, and of its own.
    """
    to_patches = (2 * side - 1) ** 2
    index = torch.full((side**2 + 1, side**2 + 1), to_patches)
    index[1:, 1:] = relative_index(side)
    index[1:, 0] = to_patches + 1
    index[0, 0] = to_patches + 2
    return index


class Block(vit.ScaledBlock):
    """A block with layer scale, whose keys have no bias and whose scores have one."""

    index: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.attention.key = nn.Linear(config.width, config.width, bias=False)
        side = config.grid[0]
        self.table = nn.Parameter(torch.zeros((2 * side - 1) ** 2 + 3, config.heads.count))
        self.register_buffer("index", position_index(side), persistent=False)

    def forward(
        self, x: Tensor, lengths: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """(B, 1 + N, D) → (B, 1 + N, D)."""
        return super().forward(x, lengths, self.table[self.index].permute(2, 0, 1)[None])


class BEiT(vit.ViT):
    """Pixels → the image's vector."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        del self.positions
        self.is_averaged = config.is_averaged

    def make_blocks(self) -> nn.ModuleList:
        """The blocks with biases of their own."""
        assert isinstance(self.config, Config)
        return nn.ModuleList(Block(self.config) for _ in range(self.config.layers))

    def prepare(self, image: ImageSpec) -> None:
        """Takes prepared uint8 pixels from now on, not a normalised image.

        Raises:
            CheckpointError: the recipe gives another size.
        """
        check_recipe(image, self.config.image)
        self.pixel_norm = PixelNorm(image)

    def embed(self, pixels: Tensor) -> Tensor:
        """The blocks' input, (B, 1 + N, D)."""
        patches = self.patches(self.pixel_norm(pixels))
        return torch.cat([self.class_token.expand(patches.shape[0], -1, -1), patches], dim=1)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → (B, 1, D)."""
        x = self.blocks[-1](self._earlier(pixels))
        return self.norm(mean_vector(x[:, 1:]) if self.is_averaged else x[:, 0])[:, None]

    def first(self, pixels: Tensor) -> Tensor:
        """The same; every position of the last block is read."""
        return self(pixels)


# ----------------------------------------------------------------------------------- declaration

_THEIRS, _OURS = "encoder.layer.*", "blocks.*"
NAMES: Names = vit.VIT_NAMES | {
    f"{_THEIRS}.attention.attention.relative_position_bias.relative_position_bias_table": (
        f"{_OURS}.table"
    ),
    f"{_THEIRS}.attention.attention.relative_position_bias.relative_position_index": None,
    f"{_THEIRS}.lambda_1": f"{_OURS}.attention_scale",
    f"{_THEIRS}.lambda_2": f"{_OURS}.mlp.scale",
    f"{_THEIRS}.intermediate.dense": f"{_OURS}.mlp.layer.up",
    f"{_THEIRS}.output.dense": f"{_OURS}.mlp.layer.down",
    "pooler.layernorm": "norm",
}
HEADS: Mapping[str, Head] = {"BeitForImageClassification": "classify", "BeitModel": "embed"}
ARCHITECTURE = image_family(
    "beit", HEADS, read_config, BEiT, lambda config: ClassToken(config.width), NAMES
)
