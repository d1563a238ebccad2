"""CLIP's ResNet: its image tower in `RN50`, `RN101`, `RN50x4`, `RN50x16` and `RN50x64`.

Paper: Radford et al. 2021, "Learning Transferable Visual Models From Natural Language
Supervision", §2.4 (arXiv 2103.00020): ResNet-D (He et al. 2018, arXiv 1812.01187) whose stem has
three convolutions, whose strides are average pools (Zhang 2019, arXiv 1904.11486), and whose last
pooling is attention.
Checkpoints: the image tower of `open_clip.py` where `layers` is a list.

Legend: B batch, C channels, h and w rows and columns, N = h · w, D width of the last stage,
E width of the common space.

Differences from open_clip: for export every batch normalisation is folded into its convolution.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from export.config.config_reader import ConfigReader
from export.config.weight_names import Entry, normed_names, projections
from export.layers.attention.attention import CrossAttention
from export.layers.attention.heads import Heads
from export.layers.images.convolutions import NormedConvolution
from export.layers.images.vision import FixedSizeTower
from inference.errors import CheckpointError

STAGES = 4
EXPANSION = 4
"""Channels behind a block over those of its 3 x 3 convolution."""
STRIDE = 32
"""Rows of the image over rows of the last stage: 2 for each of the stem's convolution, the stem's
pool and three stages."""

# ---------------------------------------------------------------------------------------- config


@dataclass(frozen=True)
class Config:
    """The tower; its images are square."""

    side: int
    width: int
    """Channels behind the stem."""
    depths: tuple[int, ...]
    """Blocks of each stage."""
    heads: Heads
    """Of the pooling; its model width is D."""

    @property
    def image(self) -> tuple[int, int]:
        """(height, width)."""
        return self.side, self.side

    @property
    def grid(self) -> int:
        """Rows and columns of the last stage."""
        return self.side // STRIDE


def read_config(reader: ConfigReader) -> Config:
    """`vision_cfg` of `open_clip_config.json`; defaults are open_clip's own."""
    reader.refuse_unless(timm_model_name=None)
    depths, width = reader.sizes("layers"), reader.integer("width", 768)
    if len(depths) != STAGES:
        raise CheckpointError(f"{reader.place}: layers must be {STAGES} numbers, not {depths!r}")
    height, side = reader.pair("image_size", 224)
    if height != side or _last_side(side) != side // STRIDE:
        raise CheckpointError(
            f"{reader.place}: image_size = {reader.values.get('image_size')!r} is not supported: a "
            f"ResNet takes square images whose convolutions leave 1/{STRIDE} of their rows"
        )
    last, head_width = STRIDE * width, reader.integer("head_width", 64)
    if width % 2 or last % head_width:
        raise CheckpointError(
            f"{reader.place}: width = {width} must be even and {STRIDE} times it "
            f"a multiple of head_width = {head_width}"
        )
    return Config(side, width, depths, Heads(last, last // head_width))


def _last_side(side: int) -> int:
    """Rows of the last stage: the stem's convolution rounds up, every pool down."""
    side = (side + 1) // 2
    for _ in range(STAGES):
        side //= 2
    return side


# ---------------------------------------------------------------------------------------- blocks


class Bottleneck(nn.Module):
    """A residual of three convolutions: 1 x 1, 3 x 3, 1 x 1; (B, C, h, w) → (B, C', h', w').

    Every convolution has stride 1: where the grid becomes smaller, its cells are averaged in front
    of the last convolution, and in front of the shortcut's, so none of them is skipped.

    Args:
        inner: Channels of the 3 x 3 convolution, C' / 4.
        stride: 1, or 2 where the grid is halved.
    """

    def __init__(self, width: int, inner: int, stride: int) -> None:
        super().__init__()
        outer = EXPANSION * inner
        self.stride = stride
        self.narrow = NormedConvolution(width, inner, 1, 1, 0)
        self.middle = NormedConvolution(inner, inner, 3, 1, 1)
        self.widen = NormedConvolution(inner, outer, 1, 1, 0)
        has_shortcut = stride > 1 or width != outer
        self.shortcut = NormedConvolution(width, outer, 1, 1, 0) if has_shortcut else None

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, h, w) → (B, C', h', w')."""
        y = self.middle(self.narrow(x).relu()).relu()
        y = self.widen(downsample(y, self.stride))
        shortcut = x if self.shortcut is None else self.shortcut(downsample(x, self.stride))
        return (y + shortcut).relu()


def downsample(x: Tensor, stride: int) -> Tensor:
    """(B, C, h, w) → (B, C, h / stride, w / stride): means of cells; a rest is not read."""
    return x if stride == 1 else functional.avg_pool2d(x, stride)


def make_stage(width: int, inner: int, depth: int, stride: int) -> nn.Sequential:
    """Blocks, the first of which changes channels and grid."""
    first = Bottleneck(width, inner, stride)
    rest = (Bottleneck(EXPANSION * inner, inner, 1) for _ in range(depth - 1))
    return nn.Sequential(first, *rest)


class AttentionPooling(nn.Module):
    """The mean of all cells attends to itself and to every cell."""

    def __init__(self, config: Config, embedding_width: int) -> None:
        super().__init__()
        width = config.heads.model_width
        self.positions = nn.Parameter(torch.zeros(config.grid**2 + 1, width))
        self.attention = CrossAttention(config.heads)
        self.attention.out = nn.Linear(width, embedding_width)

    def forward(self, cells: Tensor) -> Tensor:
        """(B, N, D) → (B, E)."""
        x = torch.cat([cells.mean(dim=1, keepdim=True), cells], dim=1) + self.positions
        return self.attention(x[:, :1], self.attention.project_kv(x)).squeeze(1)


# --------------------------------------------------------------------------------------- network


class ResNetTower(FixedSizeTower):
    """Pixels → the image's vector."""

    def __init__(self, config: Config, embedding_width: int) -> None:
        super().__init__(config.image)
        half, width = config.width // 2, config.width
        channels = pairwise((3, half, half, width))
        self.stem = nn.ModuleList(
            NormedConvolution(before, after, 3, stride, 1)
            for (before, after), stride in zip(channels, (2, 1, 1), strict=True)
        )
        inner = [2**number * width for number in range(STAGES)]
        depths = config.depths
        self.stage1 = make_stage(width, inner[0], depths[0], stride=1)
        self.stage2 = make_stage(EXPANSION * inner[0], inner[1], depths[1], stride=2)
        self.stage3 = make_stage(EXPANSION * inner[1], inner[2], depths[2], stride=2)
        self.stage4 = make_stage(EXPANSION * inner[2], inner[3], depths[3], stride=2)
        self.pooling = AttentionPooling(config, embedding_width)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → (B, E), of length one."""
        x = self.pixel_norm(pixels)
        for convolution in self.stem:
            x = convolution(x).relu()
        x = downsample(x, 2)
        for blocks in (self.stage1, self.stage2, self.stage3, self.stage4):
            x = blocks(x)
        return functional.normalize(self.pooling(x.flatten(2).transpose(1, 2)), dim=-1)


# ----------------------------------------------------------------------------------------- names


def names(theirs: str, ours: str) -> dict[str, Entry]:
    """The table of the tower, by the names of CLIP's published code."""
    pooling = f"{ours}.pooling"
    attention = "q_proj k_proj v_proj c_proj"
    table = projections(f"{theirs}.attnpool", f"{pooling}.attention", attention)
    table[f"{theirs}.attnpool.positional_embedding"] = f"{pooling}.positions"
    for number in range(3):
        norm, own = f"{theirs}.bn{number + 1}", f"{ours}.stem.{number}"
        table |= normed_names(f"{theirs}.conv{number + 1}", norm, own)
    for number in range(1, STAGES + 1):
        layer, own = f"{theirs}.layer{number}", f"{ours}.stage{number}"
        for place, part in enumerate(("narrow", "middle", "widen"), start=1):
            table |= normed_names(
                f"{layer}.*.conv{place}", f"{layer}.*.bn{place}", f"{own}.*.{part}"
            )
        shortcut = f"{layer}.0.downsample"
        table |= normed_names(f"{shortcut}.0", f"{shortcut}.1", f"{own}.0.shortcut")
    return table
