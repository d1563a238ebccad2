"""ResNet: convolutions with residuals.

Paper: He et al. 2015, "Deep Residual Learning for Image Recognition", §3.3-4.1 (arXiv 1512.03385);
strides are on the 3 x 3 convolutions of bottlenecks unless the file says otherwise.
Checkpoints: `microsoft/resnet-*` and others of `model_type: resnet`: classes
`ResNetForImageClassification` and `ResNetModel`.

Legend: B batch, C channels, h x w grid, N = h · w, D channels of the last stage.

Differences from `transformers`: pixels come as uint8; embeddings have length one; for export every
batch normalisation is folded into its convolution.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Names, normed_names
from export.layers.activation import activation
from export.layers.images.convolutions import NormedConvolution
from export.layers.images.image_heads import Mean
from export.layers.images.vision import AnySizeTower
from export.text_encoders.image_graphs import Head, image_family
from inference.errors import CheckpointError

REDUCTION = 4
"""Channels of a bottleneck over those of its 3 x 3 convolution."""

# ---------------------------------------------------------------------------------------- config


@dataclass(frozen=True)
class Config:
    """The network's part of `config.json`."""

    supported = {"num_channels": 3}
    image: tuple[int, int] = key("image_size", 224)
    """Height and width where no recipe says so; the network takes others too."""
    stem_width: int = key("embedding_size", 64)
    widths: tuple[int, ...] = key("hidden_sizes", [256, 512, 1024, 2048])
    depths: tuple[int, ...] = key("depths", [3, 4, 6, 3])
    layer: str = key("layer_type", "bottleneck", "choice", supported=("basic", "bottleneck"))
    activation: str = key("hidden_act", "relu", "activation")
    """Of the stem and behind each residual; within one it is a ReLU."""
    is_first_halved: bool = key("downsample_in_first_stage", False)
    has_early_stride: bool = key("downsample_in_bottleneck", False)
    """Whether the first convolution of a bottleneck has its stride, else the second."""

    @property
    def width(self) -> int:
        """D."""
        return self.widths[-1]


def read_config(reader: ConfigReader) -> Config:
    """The configuration; what we lack is refused."""
    config = reader.read(Config)
    if len(config.widths) != len(config.depths) or not config.depths:
        raise CheckpointError(f"{reader.place}: hidden_sizes and depths need one number a stage")
    return config


# --------------------------------------------------------------------------------------- network


class Residual(nn.Module):
    """Two or three convolutions beside a shortcut: (B, C, h, w) → (B, C', h', w')."""

    def __init__(self, config: Config, width: int, outer: int, stride: int) -> None:
        super().__init__()
        inner = outer // REDUCTION
        shapes = [(width, outer, 3, stride), (outer, outer, 3, 1)]
        if config.layer == "bottleneck":
            first, second = (stride, 1) if config.has_early_stride else (1, stride)
            shapes = [(width, inner, 1, first), (inner, inner, 3, second), (inner, outer, 1, 1)]
        self.convolutions = nn.ModuleList(NormedConvolution(*s, pad=s[2] // 2) for s in shapes)
        has_shortcut = stride > 1 or width != outer
        self.shortcut = NormedConvolution(width, outer, 1, stride, 0) if has_shortcut else None
        self.activation = activation(config.activation)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, h, w) → (B, C', h', w')."""
        y = x
        for convolution in self.convolutions[:-1]:
            y = convolution(y).relu()
        y = self.convolutions[-1](y)
        return self.activation(y + (x if self.shortcut is None else self.shortcut(x)))


class ResNet(AnySizeTower):
    """Pixels → one vector a cell of the last stage."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.stem = NormedConvolution(3, config.stem_width, 7, 2, 3)
        self.activation = activation(config.activation)
        self.pool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.stages = nn.ModuleList()
        width = config.stem_width
        for number, (outer, depth) in enumerate(zip(config.widths, config.depths, strict=True)):
            stride = 2 if number or config.is_first_halved else 1
            rest = (Residual(config, outer, outer, 1) for _ in range(depth - 1))
            self.stages.append(nn.Sequential(Residual(config, width, outer, stride), *rest))
            width = outer

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → (B, N, D)."""
        x = self.activation(self.stem(self.pixel_norm(pixels)))
        x = self.pool(x)
        for stage in self.stages:
            x = stage(x)
        return x.flatten(2).transpose(1, 2)


# ----------------------------------------------------------------------------------- declaration


def _norm_names(theirs: str, ours: str) -> Names:
    return normed_names(f"{theirs}.convolution", f"{theirs}.normalization", ours)


_LAYER, _OWN = "encoder.stages.*.layers.*", "stages.*.*"
NAMES: Names = {
    **_norm_names("embedder.embedder", "stem"),
    **_norm_names(f"{_LAYER}.layer.*", f"{_OWN}.convolutions.*"),
    **_norm_names(f"{_LAYER}.shortcut", f"{_OWN}.shortcut"),
}
HEADS: Mapping[str, Head] = {"ResNetForImageClassification": "classify", "ResNetModel": "embed"}
ARCHITECTURE = image_family(
    "resnet",
    HEADS,
    read_config,
    ResNet,
    lambda config: Mean(config.width),
    NAMES,
    classifier="classifier.1",
)
