"""EfficientNet: inverted bottlenecks whose channels are weighed by what the image shows.

Papers: Tan and Le 2019, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks",
§3-4 (arXiv 1905.11946): width and depth are multiples of one network's. Blocks: Sandler et al. 2018
(MobileNetV2, arXiv 1801.04381), with Hu et al. 2017 (squeeze and excitation, arXiv 1709.01507).
Checkpoints: the image tower of `model_type: align`.

Legend: B batch, C channels, h x w grid, N = h · w, D channels of the last block.

Differences from `transformers`: pixels come as uint8; for export every batch normalisation is
folded into its convolution.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from math import ceil

from torch import Tensor, nn
from torch.nn import functional

from export.config.config_reader import MOST_LAYERS, ConfigReader, key
from export.config.weight_names import Names, WeightLayout, normed_names
from export.layers.activation import activation
from export.layers.images.convolutions import NormedConvolution
from export.layers.images.image_heads import mean_vector
from export.layers.images.vision import AnySizeTower
from inference.errors import CheckpointError

STEM_WIDTH = 32
"""Of the network that others are multiples of."""
MOST_FACTOR = 1000

# ---------------------------------------------------------------------------------------- config


@dataclass(frozen=True, kw_only=True)
class Config:
    """The network's part of `config.json`, one number a stage in each list."""

    supported = {"num_channels": 3, "pooling_type": "mean"}
    image: tuple[int, int] = key("image_size", 600)
    """Height and width where no recipe says so; the network takes others too."""
    inner: tuple[int, ...] = key("in_channels", [32, 16, 24, 40, 80, 112, 192])
    outer: tuple[int, ...] = key("out_channels", [16, 24, 40, 80, 112, 192, 320])
    kernels: tuple[int, ...] = key("kernel_sizes", [3, 3, 5, 3, 5, 5, 3])
    strides: tuple[int, ...] = key("strides", [1, 2, 2, 2, 1, 2, 1])
    repeats: tuple[int, ...] = key("num_block_repeats", [1, 2, 2, 3, 3, 4, 1])
    expansions: tuple[int, ...] = key("expand_ratios", [1, 6, 6, 6, 6, 6, 6])
    even_padding: tuple[int, ...]
    """Numbers of the blocks whose stride leaves out as much at the upper left as below."""
    width_factor: float = key("width_coefficient", 2.0)
    depth_factor: float = key("depth_coefficient", 3.1)
    divisor: int = key("depth_divisor", 8)
    squeezed: float = key("squeeze_expansion_ratio", 0.25)
    """Channels that weigh those of a block, in parts of its input's."""
    activation: str = key("hidden_act", "swish", "activation")
    norm_epsilon: float = key("batch_norm_eps", 1e-3)

    def rounded(self, channels: int) -> int:
        """Channels of the scaled network: a multiple of `divisor`, and no tenth fewer (§4)."""
        wanted, step = channels * self.width_factor, self.divisor
        found = max(step, int(wanted + step / 2) // step * step)
        return int(found + step if found < 0.9 * wanted else found)

    @property
    def depths(self) -> list[int]:
        """Blocks of each stage."""
        return [ceil(self.depth_factor * count) for count in self.repeats]

    @property
    def width(self) -> int:
        """D."""
        return self.rounded(self.outer[-1])


def read_config(reader: ConfigReader) -> Config:
    """The configuration; what we lack is refused."""
    even = reader.find("depthwise_padding", [])
    config = reader.read(Config, even_padding=tuple(even if isinstance(even, list) else ()))
    lists = config.inner, config.outer, config.kernels, config.strides, config.repeats
    if len({*map(len, lists), len(config.expansions)}) != 1 or not config.outer:
        raise CheckpointError(f"{reader.place}: in_channels and so on need one number a stage")
    if config.inner != (STEM_WIDTH, *config.outer[:-1]):
        raise CheckpointError(
            f"{reader.place}: in_channels must be {STEM_WIDTH} and out_channels without the last"
        )
    if {*config.strides} - {1, 2} or not all(kernel % 2 for kernel in config.kernels):
        raise CheckpointError(f"{reader.place}: strides must be 1 or 2, kernel_sizes odd")
    factors = config.width_factor, config.depth_factor, config.squeezed
    if not all(0 < factor <= MOST_FACTOR for factor in factors):
        raise CheckpointError(f"{reader.place}: factors must be over 0 and at most {MOST_FACTOR}")
    if sum(config.depths) > MOST_LAYERS:
        raise CheckpointError(f"{reader.place}: the network has over {MOST_LAYERS} blocks")
    return config


# --------------------------------------------------------------------------------------- network


class Block(nn.Module):
    """(B, C, h, w) → (B, C', h', w'): wider, each channel by itself, weighed, narrower.

    Args:
        number: Of the block in the network.
        is_residual: Whether the input is added.
    """

    def __init__(
        self, config: Config, number: int, stage: int, width: int, *, is_first: bool
    ) -> None:
        super().__init__()
        expansion, kernel = config.expansions[stage], config.kernels[stage]
        stride = config.strides[stage] if is_first else 1
        wide, few = width * expansion, max(1, int(width * config.squeezed))
        self.is_residual = not is_first
        before = after = kernel // 2
        if stride == 2 and number not in config.even_padding:
            before -= 1
        self.padding = before, after, before, after
        self.expand = NormedConvolution(width, wide, 1, 1, 0) if expansion > 1 else None
        self.depthwise = NormedConvolution(wide, wide, kernel, stride, 0, groups=wide)
        self.reduce = nn.Linear(wide, few)
        self.weigh = nn.Linear(few, wide)
        self.narrow = NormedConvolution(wide, config.rounded(config.outer[stage]), 1, 1, 0)
        self.activation = activation(config.activation)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, h, w) → (B, C', h', w')."""
        y = x if self.expand is None else self.activation(self.expand(x))
        y = self.activation(self.depthwise(functional.pad(y, self.padding)))
        mean = mean_vector(y.flatten(2).transpose(1, 2))
        weights = self.weigh(self.activation(self.reduce(mean))).sigmoid()
        y = self.narrow(y * weights[:, :, None, None])
        return x + y if self.is_residual else y


class EfficientNet(AnySizeTower):
    """Pixels → one vector a cell of the last block."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.stem = NormedConvolution(3, config.rounded(STEM_WIDTH), 3, 2, 0)
        self.activation = activation(config.activation)
        self.blocks = nn.ModuleList(_blocks(config))
        for module in self.modules():
            if isinstance(module, NormedConvolution):
                module.norm.eps = config.norm_epsilon

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → (B, N, D)."""
        x = functional.pad(self.pixel_norm(pixels), (0, 1, 0, 1))
        x = self.activation(self.stem(x))
        for block in self.blocks:
            x = block(x)
        return x.flatten(2).transpose(1, 2)


def _blocks(config: Config) -> Iterator[Block]:
    starts = accumulate(config.depths, initial=0)
    for stage, (start, depth) in enumerate(zip(starts, config.depths, strict=False)):
        inner, outer = config.rounded(config.inner[stage]), config.rounded(config.outer[stage])
        for place in range(depth):
            width = outer if place else inner
            yield Block(config, start + place, stage, width, is_first=not place)


# ----------------------------------------------------------------------------------------- names


_BLOCK, _OWN = "encoder.blocks.*", "blocks.*"


def _linear(theirs: str, ours: str) -> Names:
    """A convolution of one pixel, which is a linear layer here."""
    weight = WeightLayout((f"{_OWN}.{ours}.weight",), is_flattened=True)
    layer = f"{_BLOCK}.squeeze_excite.{theirs}"
    return {f"{layer}.weight": weight, f"{layer}.bias": f"{_OWN}.{ours}.bias"}


NAMES: Names = {
    **normed_names("embeddings.convolution", "embeddings.batchnorm", "stem"),
    **normed_names(
        f"{_BLOCK}.expansion.expand_conv", f"{_BLOCK}.expansion.expand_bn", f"{_OWN}.expand"
    ),
    **normed_names(
        f"{_BLOCK}.depthwise_conv.depthwise_conv",
        f"{_BLOCK}.depthwise_conv.depthwise_norm",
        f"{_OWN}.depthwise",
    ),
    **_linear("reduce", "reduce"),
    **_linear("expand", "weigh"),
    **normed_names(
        f"{_BLOCK}.projection.project_conv", f"{_BLOCK}.projection.project_bn", f"{_OWN}.narrow"
    ),
}
