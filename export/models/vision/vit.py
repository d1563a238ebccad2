"""Vision Transformers: ViT, DeiT, and DINOv2 with and without registers.

Papers: Dosovitskiy et al. 2020, "An Image is Worth 16x16 Words", §3.1 (arXiv 2010.11929). DeiT:
Touvron et al. 2021, "Training data-efficient image transformers & distillation through attention",
§4 (arXiv 2012.12877). Trained without labels: Caron et al. 2021 (DINO, arXiv 2104.14294); Oquab et
al. 2023, "DINOv2", §4-5 (arXiv 2304.07193), with layer scale (Touvron et al. 2021, §2, arXiv
2103.17239) and SwiGLU (Shazeer 2020, arXiv 2002.05202); Darcet et al. 2023, "Vision Transformers
Need Registers", §2.2 (arXiv 2309.16588).
Checkpoints: classifiers and encoders of `model_type: vit` (also DINO, and DeiT without
distillation), `deit`, `dinov2` and `dinov2_with_registers`; the encoder of `model_type:
vision-encoder-decoder` folders.

Legend: B batch, N patches, F tokens in front of them, C classes, D width.

Differences from `transformers`: pixels come as uint8; positions are interpolated whenever the image
recipe's size is not the checkpoint's, once, before export. Embeddings have length one: they are the
pooler's output where the checkpoint has a pooler, else (DINO, DINOv2) the class token's vector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from export.architecture import Lowering
from export.config.config_reader import ConfigReader, key
from export.config.weight_names import VIT_ATTENTION, Names, Rename, WeightLayout, projections
from export.layers.attention.attention import SelfAttention
from export.layers.attention.heads import Heads
from export.layers.blocks import MLP, BlockConfig, EncoderBlock, GatedMLP, make_encoder_blocks
from export.layers.images.image_heads import ClassToken, ClassTokenAndMean, ImageModel, Pooler
from export.layers.images.vision import GridPositions, PatchEmbedding, PixelNorm, patch_grid
from export.text_encoders.image_graphs import (
    Head,
    ImageConfig,
    image_architecture,
    read_head,
    rollout,
)
from inference.bundle.inputs import ImageSpec

# ---------------------------------------------------------------------------------------- config


@dataclass(frozen=True, kw_only=True)
class Config(BlockConfig):
    """The network's part of `config.json`; sizes are (height, width)."""

    supported = {"num_channels": 3}
    leading: ClassVar[int] = 1
    """Tokens in front of the patches that have a position: the class token."""
    image: tuple[int, int] = key("image_size", 224)
    patch: tuple[int, int] = key("patch_size", 16)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return patch_grid(self.image, self.patch)

    @property
    def positions(self) -> int:
        """Patches and the tokens in front of them."""
        return self.grid[0] * self.grid[1] + self.leading


@dataclass(frozen=True, kw_only=True)
class DeiTConfig(Config):
    """With a distillation token behind the class token."""

    leading = 2


@dataclass(frozen=True, kw_only=True)
class DINOv2Config(Config):
    """With layer scale, perhaps another MLP, and registers."""

    registers: int = key("num_register_tokens", 4)
    """Learned tokens between class token and patches, without positions."""
    is_gated: bool = key("use_swiglu_ffn", False)
    """Whether the MLP is a SwiGLU."""


@dataclass(frozen=True, kw_only=True)
class PoolerConfig:
    """The layer on the class token that embeddings are read from."""

    width: int = key("pooler_output_size")
    activation: str = key("pooler_act", "tanh")


@dataclass(frozen=True, kw_only=True)
class PooledConfig(ImageConfig):
    """Of a classifier, or of an encoder that may have a pooler."""

    network: Config
    pooler: PoolerConfig = key()


def read_config(reader: ConfigReader, form: type[BlockConfig] = Config, **given: Any) -> Any:
    """The configuration; what we lack is refused.

    Args:
        given: Fields that `config.json` has in another form.
    """
    reader.refuse_unless(head_dim=None)
    heads = reader.read(Heads, bias=reader.flag("qkv_bias", True))
    return reader.read(form, heads=heads, **given)


def read_pooled(
    values: Mapping[str, Any], heads: Mapping[str, Head], form: type[Config] = Config
) -> PooledConfig:
    """The configuration of a ViT or DeiT with its head."""
    reader = ConfigReader(values)
    network = read_config(reader, form)
    reader.defaults = {"pooler_output_size": network.width}
    return reader.read(PooledConfig, network=network, **read_head(values, heads))


# --------------------------------------------------------------------------------------- network


class ViT(nn.Module):
    """Pixels → one vector a patch, and one for the class token in front."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.leading = config.leading
        self.pixel_norm: nn.Module = nn.Identity()
        self.patches = PatchEmbedding(config.width, config.patch, bias=True)
        self.class_token = nn.Parameter(torch.zeros(1, 1, config.width))
        self.positions = GridPositions(config.width, config.grid, config.leading)
        self.blocks = self.make_blocks()
        self.norm: nn.Module = nn.LayerNorm(config.width, eps=config.norm_epsilon)

    def make_blocks(self) -> nn.ModuleList:
        """The blocks, norms in front (§3.1)."""
        return make_encoder_blocks(self.config, is_norm_first=True)

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


class DeiT(ViT):
    """Pixels → a vector each for class token, distillation token and patches (§4)."""

    def __init__(self, config: DeiTConfig) -> None:
        super().__init__(config)
        self.distillation_token = nn.Parameter(torch.zeros(1, 1, config.width))

    def leading_tokens(self) -> Tensor:
        """(1, 2, D)."""
        return torch.cat([self.class_token, self.distillation_token], dim=1)


class Scaled(nn.Module):
    """A sub-layer whose output is multiplied channel by channel: layer scale."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.layer = layer
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) → (B, T, D)."""
        return self.layer(x) * self.scale


class ScaledBlock(EncoderBlock):
    """An encoder block with layer scale on attention and MLP, which `make` makes."""

    def __init__(self, config: Config, make: Callable[[int, int, str], nn.Module] = MLP) -> None:
        super().__init__(
            SelfAttention(config.heads),
            Scaled(make(config.width, config.mlp_width, config.activation), config.width),
            partial(nn.LayerNorm, config.width, eps=config.norm_epsilon),
            is_norm_first=True,
        )
        self.attention_scale = nn.Parameter(torch.ones(config.width))

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """(B, T, D), (B, T, D) → (B, T, D)."""
        x = x + attended * self.attention_scale
        return x + self.mlp(self.mlp_norm(x))


class DINOv2(ViT):
    """Pixels → a vector each for class token, registers and patches."""

    config: DINOv2Config

    def __init__(self, config: DINOv2Config) -> None:
        super().__init__(config)
        self.leading = 1 + config.registers
        self.registers: nn.Parameter | None = None
        if config.registers:
            self.registers = nn.Parameter(torch.zeros(1, config.registers, config.width))
            # The published code of the model with registers interpolates with antialiasing.
            self.positions.is_antialiased = True

    def make_blocks(self) -> nn.ModuleList:
        """The blocks with layer scale."""
        make = partial(GatedMLP, bias=True) if self.config.is_gated else MLP
        return nn.ModuleList(ScaledBlock(self.config, make) for _ in range(self.config.layers))

    def embed(self, pixels: Tensor) -> Tensor:
        x = super().embed(pixels)
        if self.registers is None:
            return x
        registers = self.registers.expand(x.shape[0], -1, -1)
        return torch.cat([x[:, :1], registers, x[:, 1:]], dim=1)


# ----------------------------------------------------------------------------------------- names

_THEIRS, _OURS = "encoder.layer.*", "blocks.*"
_NAMES: Names = {
    "embeddings.cls_token": "class_token",
    "embeddings.position_embeddings": "positions.table",
    "embeddings.mask_token": None,
    "embeddings.patch_embeddings.projection": "patches.projection",
    **projections(f"{_THEIRS}.attention", f"{_OURS}.attention", VIT_ATTENTION),
    "layernorm": "norm",
}
VIT_NAMES: Names = _NAMES | {
    f"{_THEIRS}.layernorm_before": f"{_OURS}.attention_norm",
    f"{_THEIRS}.layernorm_after": f"{_OURS}.mlp_norm",
    f"{_THEIRS}.intermediate.dense": f"{_OURS}.mlp.up",
    f"{_THEIRS}.output.dense": f"{_OURS}.mlp.down",
    "pooler.dense": None,
}
DEIT_NAMES: Names = VIT_NAMES | {"embeddings.distillation_token": "distillation_token"}
DINOV2_NAMES: Names = _NAMES | {
    "embeddings.register_tokens": "registers",
    f"{_THEIRS}.norm1": f"{_OURS}.attention_norm",
    f"{_THEIRS}.layer_scale1.lambda1": f"{_OURS}.attention_scale",
    f"{_THEIRS}.norm2": f"{_OURS}.mlp_norm",
    f"{_THEIRS}.mlp.fc1": f"{_OURS}.mlp.layer.up",
    f"{_THEIRS}.mlp.fc2": f"{_OURS}.mlp.layer.down",
    f"{_THEIRS}.mlp.weights_in": WeightLayout((f"{_OURS}.mlp.layer.gate", f"{_OURS}.mlp.layer.up")),
    f"{_THEIRS}.mlp.weights_out": f"{_OURS}.mlp.layer.down",
    f"{_THEIRS}.layer_scale2.lambda1": f"{_OURS}.mlp.scale",
}


def rename(theirs: str, ours: str, names: Names = VIT_NAMES) -> Names:
    """The table of a network below a prefix on either side."""
    return Rename(names).prefixed(theirs, ours)


def _rename_pooled(config: PooledConfig, prefix: str, names: Names, heads: Names) -> Rename:
    """The table of a network with its head: heads of a classifier, or a pooler."""
    if config.head == "classify":
        return Rename(rename(prefix, "network.", names) | heads)
    table = rename("", "network.", names) | {"pooler.dense": "pool.dense"}
    return Rename(table, frozenset({"pool.dense.weight", "pool.dense.bias"}))


# ---------------------------------------------------------------------------------------- graphs


def attention(model: ImageModel, image: ImageSpec) -> Lowering:
    """The class token's attention to the patches."""
    return rollout(model.network, image, model.network.leading)


# ------------------------------------------------------------------------------------------- ViT


VIT_HEADS: Mapping[str, Head] = {"ViTForImageClassification": "classify", "ViTModel": "embed"}


def build_vit(config: PooledConfig) -> ImageModel:
    """The network with the checkpoint's head."""
    network, width = ViT(config.network), config.network.width
    if config.head == "classify":
        head = nn.Linear(width, config.classes)
        return ImageModel(network, ClassToken(width), head, config.classes)
    return ImageModel(network, make_pooler(config), None, config.classes)


def make_pooler(config: PooledConfig) -> Pooler:
    """The layer on the class token."""
    return Pooler(config.network.width, config.pooler.width, config.pooler.activation)


VIT = image_architecture(
    "vit",
    partial(read_pooled, heads=VIT_HEADS),
    build_vit,
    lambda config: _rename_pooled(config, "vit.", VIT_NAMES, {"classifier": "head"}),
    attention=attention,
)

# ------------------------------------------------------------------------------------------ DeiT

TEACHER = "DeiTForImageClassificationWithTeacher"
DEIT_HEADS: Mapping[str, Head] = {
    TEACHER: "classify",
    "DeiTForImageClassification": "classify",
    "DeiTModel": "embed",
}


class LeadingTokens(nn.Module):
    """The vectors that classifiers read: (B, 2 + N, D) → (B, F, D)."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.count = count
        self.width = width

    def forward(self, vectors: Tensor) -> Tensor:
        """Of the class token, and of the distillation token where it has a classifier."""
        return vectors[:, : self.count]


class Classifiers(nn.Module):
    """Class scores from the class token, and from the distillation token as the teacher's."""

    def __init__(self, config: PooledConfig) -> None:
        super().__init__()
        width, classes = config.network.width, config.classes
        self.by_class = nn.Linear(width, classes)
        has_teacher = config.head_class == TEACHER
        self.by_teacher = nn.Linear(width, classes) if has_teacher else None

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, F, D) → the mean of both (B, C): "joint classifiers" (§4)."""
        logits = self.by_class(tokens[:, 0])
        if self.by_teacher is None:
            return logits
        return (logits + self.by_teacher(tokens[:, 1])) / 2


def build_deit(config: PooledConfig) -> ImageModel:
    """The network with the checkpoint's head."""
    assert isinstance(config.network, DeiTConfig)
    network = DeiT(config.network)
    if config.head == "classify":
        tokens = LeadingTokens(2 if config.head_class == TEACHER else 1, config.network.width)
        return ImageModel(network, tokens, Classifiers(config), config.classes)
    return ImageModel(network, make_pooler(config), None, config.classes)


def _rename_deit(config: PooledConfig) -> Rename:
    """`transformers`' names → ours."""
    heads: Names = {"classifier": "head.by_class"}
    if config.head_class == TEACHER:
        heads = {"cls_classifier": "head.by_class", "distillation_classifier": "head.by_teacher"}
    return _rename_pooled(config, "deit.", DEIT_NAMES, heads)


DEIT = image_architecture(
    "deit",
    partial(read_pooled, heads=DEIT_HEADS, form=DeiTConfig),
    build_deit,
    _rename_deit,
    attention=attention,
)

# ---------------------------------------------------------------------------------------- DINOv2

REGISTERS = "dinov2_with_registers"
DINOV2_HEADS: dict[str, dict[str, Head]] = {
    "dinov2": {"Dinov2Model": "embed", "Dinov2ForImageClassification": "classify"},
    REGISTERS: {
        "Dinov2WithRegistersModel": "embed",
        "Dinov2WithRegistersForImageClassification": "classify",
    },
}


def read_dinov2(values: Mapping[str, Any]) -> ImageConfig:
    """The configuration; what we lack is refused."""
    reader = ConfigReader(values)
    model_type = reader.text("model_type", "dinov2")
    has_registers = model_type == REGISTERS
    reader.defaults = {"patch_size": 16 if has_registers else 14, "layer_norm_eps": 1e-6}
    given: dict[str, Any] = {} if has_registers else {"registers": 0}
    given["mlp_width"] = int(reader.integer("hidden_size") * reader.number("mlp_ratio", 4))
    if reader.flag("use_swiglu_ffn", False):
        given["mlp_width"] = (int(given["mlp_width"] * 2 / 3) + 7) // 8 * 8  # as published
        given["activation"] = "silu"
    network = read_config(reader, DINOv2Config, **given)
    return ImageConfig(network=network, **read_head(values, DINOV2_HEADS[model_type]))


def build_dinov2(config: ImageConfig) -> ImageModel:
    """The network with the checkpoint's head."""
    network, width = DINOv2(config.network), config.network.width
    if config.head == "embed":
        return ImageModel(network, ClassToken(width), None, config.classes)
    pool = ClassTokenAndMean(width, network.leading)
    return ImageModel(network, pool, nn.Linear(pool.width, config.classes), config.classes)


def _rename_dinov2(config: ImageConfig) -> Rename:
    """`transformers`' names → ours."""
    if config.head == "embed":
        return Rename(rename("", "network.", DINOV2_NAMES))
    prefix = f"{REGISTERS if config.network.registers else 'dinov2'}."
    return Rename(rename(prefix, "network.", DINOV2_NAMES) | {"classifier": "head"})


DINOV2 = image_architecture(
    "dinov2", read_dinov2, build_dinov2, _rename_dinov2, attention=attention
)
