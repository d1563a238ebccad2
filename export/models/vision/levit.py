"""LeViT: convolutions, then attention on a grid that shrinks from stage to stage.

Paper: Graham et al. 2021, "LeViT: a Vision Transformer in ConvNet's Clothing for Faster Inference",
§4 (arXiv 2104.01136).
Checkpoints: `facebook/levit-*` and others of `model_type: levit`: classes
`LevitForImageClassificationWithTeacher`, `LevitForImageClassification` and `LevitModel`.

Legend: B batch, r rows and columns of the grid, N = r² patches, C classes, D width of a stage.

Differences from `transformers`: pixels come as uint8; embeddings have length one; for export every
batch normalisation is folded into the layer in front of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Names, Rename, normed_names
from export.layers.attention.windows import DistanceAttention
from export.layers.images.convolutions import BatchNorm, NormedConvolution, NormedLinear
from export.layers.images.image_heads import ImageModel, Mean
from export.layers.images.vision import FixedSizeTower
from export.text_encoders.image_graphs import Head, ImageConfig, image_architecture, read_head
from inference.errors import CheckpointError

STAGES = 3
DOWN_RATIO, DOWN_MLP_RATIO, DOWN_STRIDE = 4, 2, 2
"""Of the attention between stages: width of values over keys, of its MLP, and of the grid."""
MOST_GRID = 32
"""Published files have 14; a list of the pairs of patches is made before any weight is read."""

# ---------------------------------------------------------------------------------------- config

TEACHER = "LevitForImageClassificationWithTeacher"
HEADS: Mapping[str, Head] = {
    TEACHER: "classify",
    "LevitForImageClassification": "classify",
    "LevitModel": "embed",
}


@dataclass(frozen=True, kw_only=True)
class Config:
    """The network's part of `config.json`; tuples hold one number a stage."""

    supported = {"num_channels": 3}
    image: tuple[int, int] = key("image_size", 224)
    patch: tuple[int, int] = key("patch_size", 16)
    kernel: int = key("kernel_size", 3)
    stride: int = key("stride", 2)
    padding: int = key("padding", 1)
    widths: tuple[int, ...] = key("hidden_sizes", count=STAGES)
    heads: tuple[int, ...] = key("num_attention_heads", count=STAGES)
    key_widths: tuple[int, ...] = key("key_dim", count=STAGES)
    depths: tuple[int, ...] = key("depths", count=STAGES)
    mlp_ratios: tuple[int, ...] = key("mlp_ratio", count=STAGES)
    value_ratios: tuple[int, ...] = key("attention_ratio", count=STAGES)
    """Width of a value over that of a key."""

    @property
    def grid(self) -> int:
        """Rows of the first stage, r."""
        return self.image[0] // self.patch[0]


def read_config(values: Mapping[str, Any]) -> ImageConfig:
    """The configuration; what we lack is refused."""
    config = ConfigReader(values).read(Config)
    if any(height != width for height, width in (config.image, config.patch)):
        raise CheckpointError(
            f"config.json: image_size and patch_size must be square, not {config.image}"
        )
    _check_grid(config)
    return ImageConfig(network=config, **read_head(values, HEADS))


def _check_grid(config: Config) -> None:
    """Refuses sizes at which the convolutions leave another grid than image over patch.

    Raises:
        CheckpointError: names both, or a grid whose pairs of patches would be too long a list.
    """
    if config.grid > MOST_GRID:
        raise CheckpointError(
            f"config.json: image_size {config.image[0]} over patch_size {config.patch[0]} makes "
            f"{config.grid} rows of patches, more than {MOST_GRID}"
        )
    size = config.image[0]
    for _ in range(4):
        size = (size + 2 * config.padding - config.kernel) // config.stride + 1
    if size != config.grid:
        raise CheckpointError(
            f"config.json: the convolutions make {size} x {size} patches of image_size "
            f"{config.image[0]}, but patch_size gives {config.grid} x {config.grid}"
        )


# ---------------------------------------------------------------------------------------- blocks


class MLP(nn.Module):
    """Up, Hardswish, down."""

    def __init__(self, width: int, inner_width: int) -> None:
        super().__init__()
        self.up = NormedLinear(width, inner_width)
        self.down = NormedLinear(inner_width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) → (B, N, D)."""
        return self.down(functional.hardswish(self.up(x)))


class Residual(nn.Module):
    """A layer whose input is added to its output."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) → (B, N, D)."""
        return x + self.layer(x)


def make_stage(config: Config, number: int, grid: int) -> tuple[list[nn.Module], int]:
    """The layers of one stage, with those that lead to the next; and the grid behind them."""
    width = config.widths[number]
    heads = config.heads[number], config.key_widths[number], config.value_ratios[number]
    layers: list[nn.Module] = []
    for _ in range(config.depths[number]):
        layers.append(Residual(DistanceAttention((width, width), heads, grid)))
        layers.append(Residual(MLP(width, config.mlp_ratios[number] * width)))
    if number + 1 == STAGES:
        return layers, grid
    key_width, after = config.key_widths[0], config.widths[number + 1]
    heads = width // key_width, key_width, DOWN_RATIO
    layers.append(DistanceAttention((width, after), heads, grid, DOWN_STRIDE))
    layers.append(Residual(MLP(after, DOWN_MLP_RATIO * after)))
    return layers, -(-grid // DOWN_STRIDE)


# --------------------------------------------------------------------------------------- network


class LeViT(FixedSizeTower):
    """Pixels → one vector a patch of the last stage."""

    def __init__(self, config: Config) -> None:
        super().__init__(config.image)  # tables of biases belong to one size
        self.config = config
        shape = config.kernel, config.stride, config.padding
        channels = [3, *(config.widths[0] // part for part in (8, 4, 2, 1))]
        self.stem = nn.ModuleList(
            NormedConvolution(inner, outer, *shape) for inner, outer in pairwise(channels)
        )
        self.stages = nn.ModuleList()
        grid = config.grid
        for number in range(STAGES):
            layers, grid = make_stage(config, number, grid)
            self.stages.append(nn.Sequential(*layers))

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → (B, N, D) of the last stage."""
        x = self.stem[0](self.pixel_norm(pixels))
        for convolution in self.stem[1:]:
            x = convolution(functional.hardswish(x))
        x = x.flatten(2).transpose(1, 2)
        for layers in self.stages:
            x = layers(x)
        return x


class Classifier(nn.Module):
    """Class scores of a normalised vector."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.norm = BatchNorm(width)
        self.linear = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(B, D) → (B, C)."""
        return self.linear(self.norm(x))


class Classifiers(nn.Module):
    """One classifier, or the mean of it and the teacher's (§4.2, "Classification")."""

    def __init__(self, config: ImageConfig) -> None:
        super().__init__()
        width = config.network.widths[-1]
        self.by_class = Classifier(width, config.classes)
        self.by_teacher = (
            Classifier(width, config.classes) if config.head_class == TEACHER else None
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, D) → (B, C)."""
        logits = self.by_class(x)
        return logits if self.by_teacher is None else (logits + self.by_teacher(x)) / 2


def build(config: ImageConfig) -> ImageModel:
    """The network with the checkpoint's head."""
    head = Classifiers(config) if config.head == "classify" else None
    pool = Mean(config.network.widths[-1])
    return ImageModel(LeViT(config.network), pool, head, config.classes)


# ----------------------------------------------------------------------------------------- names


def _norm_names(theirs: str, ours: str) -> Names:
    """A linear layer and its batch normalisation."""
    return normed_names(f"{theirs}.linear", f"{theirs}.batch_norm", ours, "linear")


def rename(config: ImageConfig) -> Rename:
    """`transformers`' names → ours."""
    table: Names = {}
    prefix = "levit." if config.head == "classify" else ""
    for number in range(4):
        theirs = f"{prefix}patch_embeddings.embedding_layer_{number + 1}"
        stem = f"network.stem.{number}"
        table |= normed_names(f"{theirs}.convolution", f"{theirs}.batch_norm", stem)
    layer, own = f"{prefix}encoder.stages.*.layers.*", "network.stages.*.*"
    table |= _norm_names(f"{layer}.module.queries_keys_values", f"{own}.layer.projection")
    table |= _norm_names(f"{layer}.module.projection", f"{own}.layer.out")
    table |= _norm_names(f"{layer}.module.linear_up", f"{own}.layer.up")
    table |= _norm_names(f"{layer}.module.linear_down", f"{own}.layer.down")
    table |= _norm_names(f"{layer}.keys_values", f"{own}.projection")
    table |= _norm_names(f"{layer}.queries", f"{own}.queries")
    table |= _norm_names(f"{layer}.projection", f"{own}.out")
    table[f"{layer}.module.attention_biases"] = f"{own}.layer.biases"
    table[f"{layer}.attention_biases"] = f"{own}.biases"
    table[f"{layer}.module.attention_bias_idxs"] = None
    table[f"{layer}.attention_bias_idxs"] = None
    table |= _norm_names("classifier", "head.by_class")
    table |= _norm_names("classifier_distill", "head.by_teacher")
    return Rename(table)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = image_architecture("levit", read_config, build, rename)
