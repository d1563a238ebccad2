"""Swin Transformer V2: cosines for scores, and positions that a small network turns into biases.

Paper: Liu et al. 2021, "Swin Transformer V2: Scaling Up Capacity and Resolution", §3 (arXiv
2111.09883). The rest of the network is `swin`.
Checkpoints: `microsoft/swinv2-*` and others of `model_type: swinv2`: classes
`Swinv2ForImageClassification` and `Swinv2Model`.

Legend: B batch, h x w grid of patches, M window side, H heads, K width of a head, D width.

Differences from `transformers`: as of `swin`; images are squares of the checkpoint's size, which
every stage halves without rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Names
from export.layers.attention.attention import SelfAttention
from export.layers.attention.heads import Heads
from export.layers.attention.windows import WindowAttention
from export.layers.images.image_heads import Mean
from export.layers.images.vision import check_recipe
from export.models.vision import swin
from export.text_encoders.image_graphs import Head, image_family
from inference.bundle.inputs import ImageSpec
from inference.errors import CheckpointError

POSITION_WIDTH = 512
"""Of the hidden layer that positions pass."""
GREATEST_SCALE = math.log(100)
GREATEST_BIAS = 16

# ---------------------------------------------------------------------------------------- config


@dataclass(frozen=True, kw_only=True)
class Config(swin.NetworkConfig):
    """The network's part of `config.json`."""

    supported = swin.NetworkConfig.supported | {"use_absolute_embeddings": False}
    trained_windows: tuple[float, ...] = key("pretrained_window_sizes", kind="numbers")
    """Window of the weights that a stage was fine-tuned from; 0: its own."""

    def side(self, stage: int) -> int:
        """M: a grid that is smaller than the window is one window."""
        return min(self.window, swin.stage_grids(self, self.image)[stage][0])


def read_config(reader: ConfigReader) -> Config:
    """The configuration; what we lack is refused."""
    reader.defaults = {"pretrained_window_sizes": [0, 0, 0, 0]}
    config = swin.read_network_config(reader, Config)
    assert isinstance(config, Config)
    multiple = config.patch[0] << len(config.depths) - 1
    if len({*config.image, *config.patch}) != 2 or config.image[0] % multiple:
        raise CheckpointError(
            f"{reader.place}: image_size = {config.image} must be a square of whole patches of the "
            f"last stage, {multiple} x {multiple}"
        )
    if len(config.trained_windows) < len(config.depths):
        raise CheckpointError(f"{reader.place}: pretrained_window_sizes needs one number a stage")
    return config


# ---------------------------------------------------------------------------------------- blocks


class CosineAttention(SelfAttention):
    """Scores are cosines times a learned scale (§3.2); keys have no bias."""

    def __init__(self, heads: Heads) -> None:
        super().__init__(heads)
        self.key = nn.Linear(heads.model_width, heads.model_width, bias=False)
        self.logit_scale = nn.Parameter(torch.zeros(heads.count, 1, 1))

    def forward(
        self, x: Tensor, lengths: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """(B, T, D) → (B, T, D)."""
        scale = self.logit_scale.clamp(max=GREATEST_SCALE).exp().squeeze(-1)  # (H, 1)
        query, key = (
            functional.normalize(part(x).unflatten(-1, (-1, self.heads.width)), dim=-1)
            for part in (self.query, self.key)
        )
        mixed = self.mix((query * scale).flatten(2), key.flatten(2), self.value(x), bias=bias)
        return self.out(mixed)


class Windows(WindowAttention):
    """Windows whose biases are computed from relative positions (§3.3)."""

    places: Tensor

    def __init__(self, heads: Heads, side: int, trained_side: int) -> None:
        super().__init__(heads, side)
        self.attention = CosineAttention(heads)
        del self.table
        self.position_mlp = nn.Sequential(
            nn.Linear(2, POSITION_WIDTH), nn.ReLU(), nn.Linear(POSITION_WIDTH, heads.count, False)
        )
        self.register_buffer("places", log_places(side, trained_side or side), persistent=False)

    def biases(self) -> Tensor:
        """(1, H, M·M, M·M)."""
        table = self.position_mlp(self.places)
        return GREATEST_BIAS * table[self.index].permute(2, 0, 1)[None].sigmoid()


def log_places(side: int, trained_side: int) -> Tensor:
    """Logarithms of relative positions, ((2·M - 1)², 2)."""
    steps = torch.arange(1 - side, side).float() / max(trained_side - 1, 1) * 8
    steps = steps.sign() * torch.log2(steps.abs() + 1) / math.log2(8)
    return torch.stack(torch.meshgrid(steps, steps, indexing="ij"), dim=-1).flatten(0, 1)


class Block(swin.Block):
    """Attention in windows and MLP, norms behind both (§3.1)."""

    def make_windows(self, config: Config, stage: int, heads: Heads) -> WindowAttention:
        heads = Heads(heads.model_width, heads.count, heads.bias, scale=1.0)
        return Windows(heads, config.side(stage), int(config.trained_windows[stage]))

    def forward(self, x: Tensor) -> Tensor:
        """(B, h, w, D) → (B, h, w, D)."""
        x = x + self.attention_norm(self.windows(x))
        return x + self.mlp_norm(self.mlp(x))


class PatchMerging(swin.PatchMerging):
    """As in Swin, the norm behind the reduction."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.norm = nn.LayerNorm(2 * width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, h, w, D) → (B, h / 2, w / 2, 2·D)."""
        return self.norm(self.reduction(self.gather(x)))


class Stage(swin.Stage):
    """Of these blocks."""

    block = Block
    patch_merging = PatchMerging


class SwinV2(swin.Swin):
    """Pixels → one vector a patch of the last stage."""

    stage = Stage

    def prepare(self, image: ImageSpec) -> None:
        """Takes prepared uint8 pixels of the checkpoint's size from now on."""
        check_recipe(image, self.config.image)
        self.prepare_grids(image, swin.stage_grids(self.config, self.config.image))


# ----------------------------------------------------------------------------------- declaration

_ATTENTION, _OURS = "encoder.layers.*.blocks.*.attention.self", "stages.*.blocks.*.windows"
NAMES: Names = swin.NAMES | {
    f"{_ATTENTION}.logit_scale": f"{_OURS}.attention.logit_scale",
    f"{_ATTENTION}.continuous_position_bias_mlp.*": f"{_OURS}.position_mlp.*",
    f"{_ATTENTION}.relative_coords_table": None,
}
HEADS: Mapping[str, Head] = {"Swinv2ForImageClassification": "classify", "Swinv2Model": "embed"}
ARCHITECTURE = image_family(
    "swinv2", HEADS, read_config, SwinV2, lambda config: Mean(config.width), NAMES
)
