"""Swin Transformer: attention inside windows that shift from block to block.

Paper: Liu et al. 2021, "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows",
§3 (arXiv 2103.14030).
Checkpoints: `microsoft/swin-*` and others of `model_type: swin`: classes
`SwinForImageClassification` and `SwinModel`; encoders of `vision_encoder_decoder`.

Legend: B batch, h x w grid of patches, D width of a stage.

Differences from `transformers`: pixels come as uint8; embeddings have length one; a grid smaller
than the window is refused (the table of relative positions does not fit it there either). Windows,
shifts and masks follow from the image recipe's size, so that they are constants of the graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from export.config.config_reader import ConfigReader, key
from export.config.weight_names import BERT_ATTENTION, Names, Rename, projections
from export.layers.attention.heads import Heads
from export.layers.attention.windows import AnyGridWindows, Grid, WindowAttention, pad_grid
from export.layers.blocks import MLP
from export.layers.images.image_heads import Mean
from export.layers.images.vision import GridPositions, PatchEmbedding, PixelNorm
from export.text_encoders.image_graphs import Head, image_family
from inference.bundle.inputs import ImageSpec
from inference.errors import CheckpointError

# ---------------------------------------------------------------------------------------- config


@dataclass(frozen=True)
class NetworkConfig:
    """The network's part of `config.json`; sizes are (height, width)."""

    supported = {"num_channels": 3}
    image: Grid = key("image_size", 224)
    patch: Grid = key("patch_size", 4)
    first_width: int = key("embed_dim", 96)
    depths: tuple[int, ...] = key("depths")
    heads: tuple[int, ...] = key("num_heads")
    window: int = key("window_size", 7)
    mlp_ratio: float = key("mlp_ratio", 4.0)
    activation: str = key("hidden_act", "gelu", "activation")
    norm_epsilon: float = key("layer_norm_eps", 1e-5)
    has_bias: bool = key("qkv_bias", True)
    """Of queries, keys and values."""
    has_positions: bool = key("use_absolute_embeddings", False)
    """Whether patches have learned absolute positions too."""
    has_final_norm: bool = True
    has_any_size: bool = False
    """Whether images have any size, which no window has to fit into."""

    @property
    def width(self) -> int:
        """D of the last stage."""
        return self.stage_width(len(self.depths) - 1)

    @property
    def grid(self) -> Grid:
        """Rows and columns of the last stage."""
        return stage_grids(self, self.image)[-1]

    @property
    def positions(self) -> int:
        """Vectors of an image."""
        return self.grid[0] * self.grid[1]

    def stage_width(self, stage: int) -> int:
        """D doubles from stage to stage."""
        return self.first_width * 2**stage


def read_document_config(reader: ConfigReader) -> NetworkConfig:
    """The network's part of `config.json` for Donut's encoder, which has no last norm."""
    reader.refuse_unless(use_absolute_embeddings=False)
    return replace(read_network_config(reader), has_final_norm=False)


def read_network_config(
    reader: ConfigReader, form: type[NetworkConfig] = NetworkConfig
) -> NetworkConfig:
    """The network's part of `config.json`."""
    config = reader.read(form)
    if len(config.depths) != len(config.heads) or not config.depths:
        raise CheckpointError(f"{reader.place}: depths and num_heads need one number a stage")
    for stage, count in enumerate(config.heads):
        reader.divide(config.stage_width(stage), count)
    return config


def stage_grids(config: NetworkConfig, image: Grid) -> list[Grid]:
    """Rows and columns at each stage; sides that do not divide are padded."""
    grid = -(-image[0] // config.patch[0]), -(-image[1] // config.patch[1])
    grids = [grid]
    for _ in config.depths[1:]:
        grid = -(-grid[0] // 2), -(-grid[1] // 2)
        grids.append(grid)
    return grids


# ---------------------------------------------------------------------------------------- blocks


class Block(nn.Module):
    """Attention in windows and MLP behind norms."""

    def __init__(self, config: NetworkConfig, stage: int) -> None:
        super().__init__()
        width = config.stage_width(stage)
        heads = Heads(width, config.heads[stage], bias=config.has_bias)
        make_norm = partial(nn.LayerNorm, width, eps=config.norm_epsilon)
        self.attention_norm = make_norm()
        self.windows = self.make_windows(config, stage, heads)
        self.mlp_norm = make_norm()
        self.mlp = MLP(width, int(config.mlp_ratio * width), config.activation)

    def make_windows(self, config: Any, stage: int, heads: Heads) -> WindowAttention:
        """The attention inside windows."""
        windows = AnyGridWindows if config.has_any_size else WindowAttention
        return windows(heads, config.window)

    def forward(self, x: Tensor) -> Tensor:
        """(B, h, w, D) → (B, h, w, D)."""
        x = x + self.windows(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class PatchMerging(nn.Module):
    """Four neighbours become one patch of twice the width (§3.1)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * width)
        self.reduction = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, h, w, D) → (B, ⌈h / 2⌉, ⌈w / 2⌉, 2·D)."""
        return self.reduction(self.norm(self.gather(x)))

    @staticmethod
    def gather(x: Tensor) -> Tensor:
        """(B, h, w, D) → (B, ⌈h / 2⌉, ⌈w / 2⌉, 4·D); column by column, as published."""
        x = pad_grid(x, (2, 2))
        parts = [x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
        return torch.cat(parts, dim=-1)


class Stage(nn.Module):
    """Blocks of one resolution, and the merging of patches for the next stage if there is one."""

    block: ClassVar[type[Block]] = Block
    patch_merging: ClassVar[type[PatchMerging]] = PatchMerging

    def __init__(self, config: NetworkConfig, stage: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(self.block(config, stage) for _ in range(config.depths[stage]))
        self.merging: nn.Module = nn.Identity()
        if stage + 1 < len(config.depths):
            self.merging = self.patch_merging(config.stage_width(stage))

    def prepare(self, grid: Grid) -> None:
        """Every other block's windows are shifted by half a window."""
        for number, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            block.windows.prepare(grid, block.windows.side // 2 if number % 2 else 0)

    def forward(self, x: Tensor) -> Tensor:
        """(B, h, w, D) → (B, h', w', D')."""
        for block in self.blocks:
            x = block(x)
        return self.merging(x)


# --------------------------------------------------------------------------------------- network


class Swin(nn.Module):
    """Pixels → one vector a patch of the last stage."""

    stage: ClassVar[type[Stage]] = Stage

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.pixel_norm: nn.Module = nn.Identity()
        self.patches = PatchEmbedding(config.first_width, config.patch, bias=True)
        self.patch_norm = nn.LayerNorm(config.first_width)
        self.positions: GridPositions | None = None
        if config.has_positions:
            trained = config.image[0] // config.patch[0], config.image[1] // config.patch[1]
            self.positions = GridPositions(config.first_width, trained, leading=0)
        self.stages = nn.ModuleList(
            self.stage(config, stage) for stage in range(len(config.depths))
        )
        self.norm: nn.Module = nn.Identity()
        if config.has_final_norm:
            self.norm = nn.LayerNorm(config.width, eps=config.norm_epsilon)

    def prepare(self, image: ImageSpec) -> None:
        """Takes prepared uint8 pixels of that size from now on, not a normalised image.

        Raises:
            CheckpointError: a stage's grid is smaller than the window, or patches with learned
                positions do not divide the image.
        """
        size = image.shape[:2]
        grids = stage_grids(self.config, size)
        side = self.config.window
        if min(grids[-1]) < side:
            raise CheckpointError(
                f"an image of {size[0]} x {size[1]} leaves {grids[-1][0]} x {grids[-1][1]} patches "
                f"in the last stage, fewer than window_size = {side}"
            )
        patch = self.config.patch
        if self.positions is not None and (size[0] % patch[0] or size[1] % patch[1]):
            raise CheckpointError(
                f"use_absolute_embeddings needs an image of whole patches, not {size}"
            )
        self.prepare_grids(image, grids)

    def prepare_grids(self, image: ImageSpec, grids: list[Grid]) -> None:
        """Takes the recipe's pixels from now on, and a grid for each stage."""
        self.pixel_norm = PixelNorm(image)
        if self.positions is not None:
            self.positions.resize(grids[0])
        for stage, grid in zip(self.stages, grids, strict=True):
            assert isinstance(stage, Stage)
            stage.prepare(grid)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → (B, h·w, D) of the last stage."""
        image = self.pixel_norm(pixels).permute(0, 2, 3, 1)
        image = pad_grid(image, self.config.patch).permute(0, 3, 1, 2)
        x = self.patches.projection(image).permute(0, 2, 3, 1)  # (B, h, w, D)
        x = self.patch_norm(x)
        if self.positions is not None:
            x = x + self.positions().unflatten(1, self.positions.grid)
        for stage in self.stages:
            x = stage(x)
        return self.norm(x.flatten(1, 2))


# ----------------------------------------------------------------------------------------- names

_THEIRS, _OURS = "encoder.layers.*.blocks.*", "stages.*.blocks.*"


NAMES: Names = {
    "embeddings.mask_token": None,
    "embeddings.norm": "patch_norm",
    "embeddings.patch_embeddings.projection": "patches.projection",
    "embeddings.position_embeddings": "positions.table",
    f"{_THEIRS}.layernorm_before": f"{_OURS}.attention_norm",
    **projections(f"{_THEIRS}.attention", f"{_OURS}.windows.attention", BERT_ATTENTION),
    f"{_THEIRS}.attention.self.relative_position_bias_table": f"{_OURS}.windows.table",
    f"{_THEIRS}.attention.self.relative_position_index": None,
    f"{_THEIRS}.layernorm_after": f"{_OURS}.mlp_norm",
    f"{_THEIRS}.intermediate.dense": f"{_OURS}.mlp.up",
    f"{_THEIRS}.output.dense": f"{_OURS}.mlp.down",
    "encoder.layers.*.downsample.norm": "stages.*.merging.norm",
    "encoder.layers.*.downsample.reduction": "stages.*.merging.reduction",
    "layernorm": "norm",
}


def rename_network(theirs: str, ours: str) -> Names:
    """The network's names below a prefix on either side."""
    return Rename(NAMES).prefixed(theirs, ours)


# ----------------------------------------------------------------------------------- declaration

HEADS: Mapping[str, Head] = {"SwinForImageClassification": "classify", "SwinModel": "embed"}
ARCHITECTURE = image_family(
    "swin", HEADS, read_network_config, Swin, lambda each: Mean(each.width), NAMES
)
