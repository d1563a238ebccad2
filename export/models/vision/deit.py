"""DeiT: a ViT with a second token that learned from a teacher.

Paper: Touvron et al. 2021, "Training data-efficient image transformers & distillation through
attention", §4 (arXiv 2012.12877).
Checkpoints: `facebook/deit-*-distilled-*` and others of `model_type: deit`: classes
`DeiTForImageClassificationWithTeacher`, `DeiTForImageClassification` and `DeiTModel`. (DeiT without
distillation is `model_type: vit`.)

Legend: B batch, N patches, C classes, D width.

Differences from `transformers`: pixels come as uint8; embeddings have length one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from export.architecture import Lowering
from export.config.config_reader import ConfigReader
from export.config.weight_names import Entry, Rename
from export.layers.images.image_heads import ImageModel, Pooler
from export.models.vision import vit
from export.text_encoders.image_graphs import (
    Head,
    ImageHead,
    image_architecture,
    read_head,
    rollout,
)
from inference.bundle.inputs import ImageSpec

LEADING = 2
"""Tokens in front of the patches: class and distillation."""

# ---------------------------------------------------------------------------------------- config

TEACHER = "DeiTForImageClassificationWithTeacher"
HEADS: Mapping[str, Head] = {
    TEACHER: "classify",
    "DeiTForImageClassification": "classify",
    "DeiTModel": "embed",
}


@dataclass(frozen=True)
class NetworkConfig(vit.Config):
    """As ViT's, with one token more."""

    @property
    def positions(self) -> int:
        """Patches, class token and distillation token."""
        return super().positions + 1


@dataclass(frozen=True, kw_only=True)
class Config(ImageHead):
    """The network and what is on top of it."""

    deit: NetworkConfig
    pooler_width: int
    pooler_activation: str

    @property
    def has_teacher(self) -> bool:
        """Whether the distillation token has a classifier of its own."""
        return self.head_class == TEACHER


def read_network_config(reader: ConfigReader) -> NetworkConfig:
    """The network's part of `config.json`."""
    return NetworkConfig(**vars(vit.read_config(reader)))


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; what we lack is refused."""
    reader = ConfigReader(values)
    network = read_network_config(reader)
    return Config(
        deit=network,
        **read_head(values, HEADS),
        pooler_width=reader.integer("pooler_output_size", network.width),
        pooler_activation=reader.text("pooler_act", "tanh"),
    )


# --------------------------------------------------------------------------------------- network


class DeiT(vit.ViT):
    """Pixels → a vector each for class token, distillation token and patches (§4)."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__(config, LEADING)
        self.distillation_token = nn.Parameter(torch.zeros(1, 1, config.width))

    def leading_tokens(self) -> Tensor:
        """(1, 2, D)."""
        return torch.cat([self.class_token, self.distillation_token], dim=1)


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

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, classes = config.deit.width, config.classes
        self.by_class = nn.Linear(width, classes)
        self.by_teacher = nn.Linear(width, classes) if config.has_teacher else None

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, F, D) → the mean of both (B, C): "joint classifiers" (§4)."""
        logits = self.by_class(tokens[:, 0])
        if self.by_teacher is None:
            return logits
        return (logits + self.by_teacher(tokens[:, 1])) / 2


def build(config: Config) -> ImageModel:
    """The network with the checkpoint's head."""
    network = DeiT(config.deit)
    if config.head == "classify":
        tokens = LeadingTokens(LEADING if config.has_teacher else 1, config.deit.width)
        return ImageModel(network, tokens, Classifiers(config), config.classes)
    pooler = Pooler(config.deit.width, config.pooler_width, config.pooler_activation)
    return ImageModel(network, pooler, None, config.classes)


# ----------------------------------------------------------------------------------------- names


def rename_network(theirs: str, ours: str) -> dict[str, Entry]:
    """The network's names below a prefix on either side."""
    token: dict[str, Entry] = {
        f"{theirs}embeddings.distillation_token": f"{ours}distillation_token"
    }
    return vit.rename(theirs, ours) | token


def rename(config: Config) -> Rename:
    """`transformers`' names → ours."""
    if config.head == "embed":
        table = rename_network("", "network.") | {"pooler.dense": "pool.dense"}
        return Rename(table, frozenset({"pool.dense.weight", "pool.dense.bias"}))
    table = rename_network("deit.", "network.")
    if config.has_teacher:
        heads = {"cls_classifier": "head.by_class", "distillation_classifier": "head.by_teacher"}
    else:
        heads = {"classifier": "head.by_class"}
    return Rename(table | heads)


# ---------------------------------------------------------------------------------------- graphs


def attention(model: ImageModel, image: ImageSpec) -> Lowering:
    """The class token's attention to the patches."""
    assert isinstance(model.network, DeiT)
    return rollout(model.network, image, LEADING)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = image_architecture(
    "deit",
    read_config,
    build,
    rename,
    image_size=lambda config: config.deit.image,
    attention=attention,
)
