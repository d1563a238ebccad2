"""DINOv2: a ViT with layer scale, trained without labels; also with registers.

Papers: Oquab et al. 2023, "DINOv2: Learning Robust Visual Features without Supervision", §4-5
(arXiv 2304.07193); layer scale: Touvron et al. 2021, §2 (arXiv 2103.17239); SwiGLU: Shazeer 2020
(arXiv 2002.05202); registers: Darcet et al. 2023, "Vision Transformers Need Registers", §2.2
(arXiv 2309.16588).
Checkpoints: `facebook/dinov2-*` and others of `model_type: dinov2` and `dinov2_with_registers`:
the model itself and its image classifier.

Legend: B batch, N patches, C classes, D width.

Differences from `transformers`: pixels come as uint8; positions are interpolated before export;
embeddings (the class token's vector) have length one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from export.architecture import Lowering
from export.config.config_reader import ConfigReader
from export.config.weight_names import Entry, Rename, WeightLayout
from export.layers.attention.attention import SelfAttention
from export.layers.blocks import MLP, EncoderBlock, GatedMLP
from export.layers.images.image_heads import ClassToken, ClassTokenAndMean, ImageModel
from export.models.vision import vit
from export.text_encoders.image_graphs import (
    Head,
    ImageHead,
    image_architecture,
    read_head,
    rollout,
)
from inference.bundle.inputs import ImageSpec

# ---------------------------------------------------------------------------------------- config

REGISTERS = "dinov2_with_registers"
HEADS: dict[str, dict[str, Head]] = {
    "dinov2": {"Dinov2Model": "embed", "Dinov2ForImageClassification": "classify"},
    REGISTERS: {
        "Dinov2WithRegistersModel": "embed",
        "Dinov2WithRegistersForImageClassification": "classify",
    },
}


@dataclass(frozen=True, kw_only=True)
class Config(ImageHead):
    """The network and what is on top of it."""

    vit: vit.Config
    registers: int
    """Learned tokens between class token and patches, without positions."""
    is_gated: bool
    """Whether the MLP is a SwiGLU."""
    model_type: str

    @property
    def leading(self) -> int:
        """F: the class token and the registers."""
        return 1 + self.registers


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; what we lack is refused."""
    reader = ConfigReader(values)
    model_type = reader.text("model_type", "dinov2")
    has_registers = model_type == REGISTERS
    reader.defaults = {"patch_size": 16 if has_registers else 14, "layer_norm_eps": 1e-6}
    inner = int(reader.integer("hidden_size") * reader.number("mlp_ratio", 4))
    is_gated = reader.flag("use_swiglu_ffn", False)
    if is_gated:
        inner = (int(inner * 2 / 3) + 7) // 8 * 8  # as published
    activation = "silu" if is_gated else reader.activation("hidden_act", "gelu")
    return Config(
        vit=vit.read_config(reader, mlp_width=inner, activation=activation),
        registers=reader.integer("num_register_tokens", 4) if has_registers else 0,
        is_gated=is_gated,
        **read_head(values, HEADS[model_type]),
        model_type=model_type,
    )


# ---------------------------------------------------------------------------------------- blocks


class Scaled(nn.Module):
    """A sub-layer whose output is multiplied channel by channel: layer scale."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.layer = layer
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) → (B, T, D)."""
        return self.layer(x) * self.scale


class Block(EncoderBlock):
    """An encoder block with layer scale on attention and MLP."""

    def __init__(self, config: Config) -> None:
        network = config.vit
        make = partial(GatedMLP, bias=True) if config.is_gated else MLP
        mlp = make(network.width, network.mlp_width, network.activation)
        super().__init__(
            SelfAttention(network.heads),
            Scaled(mlp, network.width),
            partial(nn.LayerNorm, network.width, eps=network.norm_epsilon),
            is_norm_first=True,
        )
        self.attention_scale = nn.Parameter(torch.ones(network.width))

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """(B, T, D), (B, T, D) → (B, T, D)."""
        x = x + attended * self.attention_scale
        return x + self.mlp(self.mlp_norm(x))


# --------------------------------------------------------------------------------------- network


class DINOv2(vit.ViT):
    """Pixels → a vector each for class token, registers and patches."""

    def __init__(self, config: Config) -> None:
        super().__init__(config.vit)
        self.leading = config.leading
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.vit.layers))
        self.registers: nn.Parameter | None = None
        if config.registers:
            self.registers = nn.Parameter(torch.zeros(1, config.registers, config.vit.width))
            # The published code of the model with registers interpolates with antialiasing.
            self.positions.is_antialiased = True

    def embed(self, pixels: Tensor) -> Tensor:
        """The blocks' input, (B, F + N, D)."""
        x = super().embed(pixels)
        if self.registers is None:
            return x
        registers = self.registers.expand(x.shape[0], -1, -1)
        return torch.cat([x[:, :1], registers, x[:, 1:]], dim=1)


def build(config: Config) -> ImageModel:
    """The network with the checkpoint's head."""
    network, width = DINOv2(config), config.vit.width
    if config.head == "embed":
        return ImageModel(network, ClassToken(width), None, config.classes)
    pool = ClassTokenAndMean(width, config.leading)
    return ImageModel(network, pool, nn.Linear(pool.width, config.classes), config.classes)


# ----------------------------------------------------------------------------------------- names

_THEIRS, _OURS = "encoder.layer.*", "blocks.*"
NAMES: dict[str, Entry] = {
    "embeddings.cls_token": "class_token",
    "embeddings.mask_token": None,
    "embeddings.register_tokens": "registers",
    "embeddings.position_embeddings": "positions.table",
    "embeddings.patch_embeddings.projection": "patches.projection",
    f"{_THEIRS}.norm1": f"{_OURS}.attention_norm",
    f"{_THEIRS}.attention.attention.query": f"{_OURS}.attention.query",
    f"{_THEIRS}.attention.attention.key": f"{_OURS}.attention.key",
    f"{_THEIRS}.attention.attention.value": f"{_OURS}.attention.value",
    f"{_THEIRS}.attention.output.dense": f"{_OURS}.attention.out",
    f"{_THEIRS}.layer_scale1.lambda1": f"{_OURS}.attention_scale",
    f"{_THEIRS}.norm2": f"{_OURS}.mlp_norm",
    f"{_THEIRS}.mlp.fc1": f"{_OURS}.mlp.layer.up",
    f"{_THEIRS}.mlp.fc2": f"{_OURS}.mlp.layer.down",
    f"{_THEIRS}.mlp.weights_in": WeightLayout((f"{_OURS}.mlp.layer.gate", f"{_OURS}.mlp.layer.up")),
    f"{_THEIRS}.mlp.weights_out": f"{_OURS}.mlp.layer.down",
    f"{_THEIRS}.layer_scale2.lambda1": f"{_OURS}.mlp.scale",
    "layernorm": "norm",
}


def rename(config: Config) -> Rename:
    """`transformers`' names → ours."""
    if config.head == "embed":
        return Rename(Rename(NAMES).prefixed("", "network."))
    table = Rename(NAMES).prefixed(f"{config.model_type}.", "network.")
    return Rename(table | {"classifier": "head"})


# ---------------------------------------------------------------------------------------- graphs


def attention(model: ImageModel, image: ImageSpec) -> Lowering:
    """The class token's attention to the patches."""
    network = model.network
    assert isinstance(network, DINOv2)
    return rollout(
        network, image, 1 + (0 if network.registers is None else network.registers.shape[1])
    )


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = image_architecture(
    "dinov2",
    read_config,
    build,
    rename,
    image_size=lambda config: config.vit.image,
    attention=attention,
)
