"""SegFormer's encoder as a classifier: attention over a pyramid, without positions.

Paper: Xie et al. 2021, "SegFormer: Simple and Efficient Design for Semantic Segmentation with
Transformers", §3.1 (arXiv 2105.15203): overlapping patches, keys and values of a coarser grid, and
a convolution in each MLP, which shows where a patch lies.
Checkpoints: `nvidia/mit-b*` and others of `model_type: segformer`: class
`SegformerForImageClassification`.

Legend: B batch, h x w grid, N = h · w, D width of a stage.

Difference from `transformers`: pixels come as uint8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from export.config.config_reader import ConfigReader, key
from export.config.weight_names import BERT_ATTENTION, Names, projections
from export.layers.attention.attention import CrossAttention
from export.layers.attention.heads import Heads
from export.layers.blocks import MLP
from export.layers.images.image_heads import Mean
from export.layers.images.vision import AnySizeTower
from export.text_encoders.image_graphs import Head, image_family
from inference.errors import CheckpointError

# ---------------------------------------------------------------------------------------- config


@dataclass(frozen=True)
class Config:
    """The network's part of `config.json`; tuples hold one number a stage."""

    supported = {"num_channels": 3}
    depths: tuple[int, ...] = key("depths", [2, 2, 2, 2])
    widths: tuple[int, ...] = key("hidden_sizes", [32, 64, 160, 256])
    heads: tuple[int, ...] = key("num_attention_heads", [1, 2, 5, 8])
    patches: tuple[int, ...] = key("patch_sizes", [7, 3, 3, 3])
    strides: tuple[int, ...] = key("strides", [4, 2, 2, 2])
    reductions: tuple[int, ...] = key("sr_ratios", [8, 4, 2, 1])
    """Rows of the grid over those of its keys and values."""
    mlp_ratios: tuple[int, ...] = key("mlp_ratios", [4, 4, 4, 4])
    stages: int = key("num_encoder_blocks", 4)
    activation: str = key("hidden_act", "gelu", "activation")
    image: tuple[int, int] = key("image_size", 224)


def read_config(reader: ConfigReader) -> Config:
    """The configuration; what we lack is refused."""
    config = reader.read(Config)
    shapes = (config.depths, config.widths, config.heads, config.patches, config.strides)
    counts = {len(sizes) for sizes in (*shapes, config.reductions, config.mlp_ratios)}
    if counts != {config.stages}:
        raise CheckpointError(
            f"{reader.place}: every list needs one number for each of {config.stages} stages"
        )
    for width, heads in zip(config.widths, config.heads, strict=True):
        reader.divide(width, heads)
    return config


def to_rows(grid: Tensor) -> Tensor:
    """(B, D, h, w) → (B, N, D)."""
    return grid.flatten(2).transpose(1, 2)


class Block(nn.Module):
    """Attention to a coarser grid (Wang et al. 2021, "PVT", §3.3, arXiv 2102.12122), and an MLP
    whose inner channels are convolved, each by itself.
    """

    def __init__(self, config: Config, stage: int) -> None:
        super().__init__()
        width, ratio = config.widths[stage], config.reductions[stage]
        inner = width * config.mlp_ratios[stage]
        self.attention_norm = nn.LayerNorm(width)
        self.attention = CrossAttention(Heads(width, config.heads[stage]))
        self.reduction: nn.Module | None = None
        if ratio > 1:
            self.reduction = nn.Conv2d(width, width, ratio, ratio)
            self.reduced_norm = nn.LayerNorm(width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = MLP(width, inner, config.activation)
        self.depthwise = nn.Conv2d(inner, inner, 3, padding=1, groups=inner)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """(B, N, D) → (B, N, D)."""
        query = read = self.attention_norm(x)
        if self.reduction is not None:
            reduced = self.reduction(query.transpose(1, 2).unflatten(2, grid))
            read = self.reduced_norm(to_rows(reduced))
        x = x + self.attention(query, self.attention.project_kv(read))
        inner = self.mlp.up(self.mlp_norm(x)).transpose(1, 2).unflatten(2, grid)
        return x + self.mlp.down(self.mlp.activation(to_rows(self.depthwise(inner))))


class SegFormer(AnySizeTower):
    """Pixels → one vector a patch of the last stage."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        widths = (3, *config.widths)
        self.patches = nn.ModuleList(
            nn.Conv2d(widths[stage], widths[stage + 1], patch, stride, padding=patch // 2)
            for stage, (patch, stride) in enumerate(
                zip(config.patches, config.strides, strict=True)
            )
        )
        self.patch_norms = nn.ModuleList(nn.LayerNorm(width) for width in config.widths)
        self.blocks = nn.ModuleList(
            nn.ModuleList(Block(config, stage) for _ in range(depth))
            for stage, depth in enumerate(config.depths)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in config.widths)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → (B, N, D) of the last stage."""
        x = self.pixel_norm(pixels)
        for patches, patch_norm, blocks, norm in zip(
            self.patches, self.patch_norms, self.blocks, self.norms, strict=True
        ):
            embedded = patches(x)
            grid = embedded.shape[2], embedded.shape[3]
            rows = patch_norm(to_rows(embedded))
            for block in blocks:  # type: ignore[attr-defined]
                rows = block(rows, grid)
            rows = norm(rows)
            x = rows.transpose(1, 2).unflatten(2, grid)
        return rows


# ----------------------------------------------------------------------------------- declaration

_THEIRS, _OURS = "encoder.block.*.*", "blocks.*.*"
NAMES: Names = {
    "encoder.patch_embeddings.*.proj": "patches.*",
    "encoder.patch_embeddings.*.layer_norm": "patch_norms.*",
    f"{_THEIRS}.layer_norm_1": f"{_OURS}.attention_norm",
    **projections(f"{_THEIRS}.attention", f"{_OURS}.attention", BERT_ATTENTION),
    f"{_THEIRS}.attention.self.sr": f"{_OURS}.reduction",
    f"{_THEIRS}.attention.self.layer_norm": f"{_OURS}.reduced_norm",
    f"{_THEIRS}.layer_norm_2": f"{_OURS}.mlp_norm",
    f"{_THEIRS}.mlp.dense1": f"{_OURS}.mlp.up",
    f"{_THEIRS}.mlp.dwconv.dwconv": f"{_OURS}.depthwise",
    f"{_THEIRS}.mlp.dense2": f"{_OURS}.mlp.down",
    "encoder.layer_norm.*": "norms.*",
}
HEADS: Mapping[str, Head] = {"SegformerForImageClassification": "classify"}
ARCHITECTURE = image_family(
    "segformer", HEADS, read_config, SegFormer, lambda config: Mean(config.widths[-1]), NAMES
)
