"""ViT by itself: an image classifier, or an encoder whose vectors compare images.

Paper: Dosovitskiy et al. 2020, "An Image is Worth 16x16 Words", §3.1 (arXiv 2010.11929); the
network is in `vit.py`. Encoders trained without labels: Caron et al. 2021, "Emerging Properties in
Self-Supervised Vision Transformers" (DINO, arXiv 2104.14294).
Checkpoints: `google/vit-*`, `facebook/dino-vit*` and others of `model_type: vit`: classes
`ViTForImageClassification` and `ViTModel`.

Legend: B batch, C classes, D width.

Differences from `transformers`: pixels come as uint8; embeddings have length one. They are the
pooler's output where the checkpoint has a pooler, else (DINO) the class token's vector.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from export.architecture import Lowering
from export.config.config_reader import ConfigReader
from export.config.weight_names import Entry, Rename
from export.layers.images.image_heads import ClassToken, ImageModel, Pooler
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

HEADS: Mapping[str, Head] = {"ViTForImageClassification": "classify", "ViTModel": "embed"}


@dataclass(frozen=True, kw_only=True)
class Config(ImageHead):
    """The network and what is on top of it."""

    vit: vit.Config
    pooler_width: int
    pooler_activation: str


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; what we lack is refused."""
    reader = ConfigReader(values)
    network = vit.read_config(reader)
    return Config(
        vit=network,
        **read_head(values, HEADS),
        pooler_width=reader.integer("pooler_output_size", network.width),
        pooler_activation=reader.text("pooler_act", "tanh"),
    )


# --------------------------------------------------------------------------------------- network


def build(config: Config) -> ImageModel:
    """The network with the checkpoint's head."""
    network, width = vit.ViT(config.vit), config.vit.width
    if config.head == "classify":
        head = nn.Linear(width, config.classes)
        return ImageModel(network, ClassToken(width), head, config.classes)
    return ImageModel(network, pooler(config), None, config.classes)


def pooler(config: Config) -> Pooler:
    """The layer on the class token that embeddings are read from."""
    return Pooler(config.vit.width, config.pooler_width, config.pooler_activation)


# ----------------------------------------------------------------------------------------- names

POOLER: dict[str, Entry] = {"pooler.dense": "pool.dense"}
OPTIONAL = frozenset({"pool.dense.weight", "pool.dense.bias"})


def rename(config: Config) -> Rename:
    """`transformers`' names → ours."""
    if config.head == "classify":
        return Rename(vit.rename("vit.", "network.") | {"classifier": "head"})
    return Rename(vit.rename("", "network.") | POOLER, OPTIONAL)


# ---------------------------------------------------------------------------------------- graphs


def attention(model: ImageModel, image: ImageSpec) -> Lowering:
    """The class token's attention to the patches."""
    assert isinstance(model.network, vit.ViT)
    return rollout(model.network, image)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = image_architecture(
    "vit",
    read_config,
    build,
    rename,
    image_size=lambda config: config.vit.image,
    attention=attention,
)
