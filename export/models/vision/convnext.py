"""ConvNeXt and ConvNeXt V2: convolutions arranged as in a Transformer.

Papers: Liu et al. 2022, "A ConvNet for the 2020s", §2 (arXiv 2201.03545); Woo et al. 2023,
"ConvNeXt V2", §4, with global response normalisation in place of layer scale (arXiv 2301.00808).
Checkpoints: `facebook/convnext-*` and `facebook/convnextv2-*`: classes
`ConvNext(V2)ForImageClassification` and `ConvNext(V2)Model`.

Legend: B batch, h x w grid, N = h · w, D width of a stage.

Differences from `transformers`: pixels come as uint8; embeddings have length one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from export.architecture import Architecture
from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Names
from export.layers.blocks import MLP
from export.layers.images.image_heads import ClassToken, mean_vector
from export.layers.images.vision import AnySizeTower
from export.text_encoders.image_graphs import Head, image_family
from inference.errors import CheckpointError

EPSILON = 1e-6
"""Of all norms but the one behind the pooling."""

# ---------------------------------------------------------------------------------------- config


@dataclass(frozen=True, kw_only=True)
class Config:
    """The network's part of `config.json`."""

    supported = {"num_channels": 3}
    image: tuple[int, int] = key("image_size", 224)
    """Height and width where no recipe says so; the network takes others too."""
    patch: tuple[int, int] = key("patch_size", 4)
    widths: tuple[int, ...] = key("hidden_sizes", [96, 192, 384, 768])
    depths: tuple[int, ...] = key("depths", [3, 3, 9, 3])
    activation: str = key("hidden_act", "gelu", "activation")
    norm_epsilon: float = key("layer_norm_eps", 1e-12)
    has_scale: bool
    """Whether the output of a block is multiplied channel by channel (version 1)."""
    has_response_norm: bool
    """Whether the MLP normalises responses (version 2)."""

    @property
    def width(self) -> int:
        """D of the last stage."""
        return self.widths[-1]


def read_config(reader: ConfigReader, *, is_second: bool) -> Config:
    """The configuration; what we lack is refused."""
    has_scale = not is_second and reader.number("layer_scale_init_value", 1e-6) > 0
    config = reader.read(Config, has_scale=has_scale, has_response_norm=is_second)
    stages = reader.integer("num_stages", 4)
    if {len(config.widths), len(config.depths)} != {stages}:
        raise CheckpointError(
            f"{reader.place}: hidden_sizes and depths need one number for each of {stages} stages"
        )
    return config


# --------------------------------------------------------------------------------------- network


class ResponseNorm(nn.Module):
    """Channels compete by their length over the image (Woo 2023 §4): (B, h, w, D) → same."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, 1, 1, width))
        self.bias = nn.Parameter(torch.zeros(1, 1, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        """The input, with what its channels' relative lengths make of it."""
        cells = x.shape[1] * x.shape[2]
        lengths = (mean_vector(x.flatten(1, 2).pow(2)) * cells).sqrt()[:, None, None]
        relative = lengths / (lengths.mean(dim=-1, keepdim=True) + EPSILON)
        return self.weight * (x * relative) + self.bias + x


class ResponseMLP(MLP):
    """An MLP with a response norm behind its activation."""

    def __init__(self, width: int, inner_width: int, activation_name: str) -> None:
        super().__init__(width, inner_width, activation_name)
        self.norm = ResponseNorm(inner_width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, h, w, D) → (B, h, w, D)."""
        return self.down(self.norm(self.activation(self.up(x))))


class Block(nn.Module):
    """Each channel's 7 x 7 convolution, norm and MLP, beside a residual."""

    def __init__(self, config: Config, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, kernel_size=7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=EPSILON)
        make = ResponseMLP if config.has_response_norm else MLP
        self.mlp = make(width, 4 * width, config.activation)
        self.scale = nn.Parameter(torch.ones(width)) if config.has_scale else None

    def forward(self, x: Tensor) -> Tensor:
        """(B, h, w, D) → (B, h, w, D)."""
        y = self.depthwise(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        y = self.mlp(self.norm(y))
        return x + (y if self.scale is None else y * self.scale)


class Stage(nn.Module):
    """Blocks, behind a convolution that halves the grid where there is a stage in front."""

    def __init__(self, config: Config, number: int) -> None:
        super().__init__()
        width = config.widths[number]
        self.downsampling = nn.ModuleList()
        if number:
            before = config.widths[number - 1]
            self.downsampling.append(nn.LayerNorm(before, eps=EPSILON))
            self.downsampling.append(nn.Conv2d(before, width, kernel_size=2, stride=2))
        self.blocks = nn.Sequential(*(Block(config, width) for _ in range(config.depths[number])))

    def forward(self, x: Tensor) -> Tensor:
        """(B, h, w, D) → (B, h', w', D')."""
        if self.downsampling:
            norm, convolution = self.downsampling
            x = convolution(norm(x).permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        return self.blocks(x)


class ConvNeXt(AnySizeTower):
    """Pixels → the image's vector."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, config.widths[0], config.patch, config.patch)
        self.stem_norm = nn.LayerNorm(config.widths[0], eps=EPSILON)
        self.stages = nn.Sequential(*(Stage(config, each) for each in range(len(config.depths))))
        self.norm = nn.LayerNorm(config.width, eps=config.norm_epsilon)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → (B, 1, D): the mean of all cells, normalised."""
        x = self.stem(self.pixel_norm(pixels)).permute(0, 2, 3, 1)
        x = self.stages(self.stem_norm(x))
        return self.norm(mean_vector(x.flatten(1, 2)))[:, None]


# ----------------------------------------------------------------------------------- declaration

_LAYER, _OWN = "encoder.stages.*.layers.*", "stages.*.blocks.*"
NAMES: Names = {
    "embeddings.patch_embeddings": "stem",
    "embeddings.layernorm": "stem_norm",
    "encoder.stages.*.downsampling_layer.*": "stages.*.downsampling.*",
    f"{_LAYER}.dwconv": f"{_OWN}.depthwise",
    f"{_LAYER}.layernorm": f"{_OWN}.norm",
    f"{_LAYER}.pwconv1": f"{_OWN}.mlp.up",
    f"{_LAYER}.grn": f"{_OWN}.mlp.norm",
    f"{_LAYER}.pwconv2": f"{_OWN}.mlp.down",
    f"{_LAYER}.layer_scale_parameter": f"{_OWN}.scale",
    "layernorm": "norm",
}


def declare(name: str, classes: str, *, is_second: bool) -> Architecture:
    """The architecture.

    Args:
        classes: What the names of its classes begin with.
    """
    heads: Mapping[str, Head] = {
        f"{classes}ForImageClassification": "classify",
        f"{classes}Model": "embed",
    }
    read = partial(read_config, is_second=is_second)
    return image_family(name, heads, read, ConvNeXt, lambda each: ClassToken(each.width), NAMES)


CONVNEXT = declare("convnext", "ConvNext", is_second=False)
CONVNEXT_V2 = declare("convnextv2", "ConvNextV2", is_second=True)
