"""Swin as classifier and encoder of images.

Paper: Liu et al. 2021 (arXiv 2103.14030); the network is `swin`.
Checkpoints: `microsoft/swin-*` and others of `model_type: swin`: classes
`SwinForImageClassification` and `SwinModel`.

Difference from `transformers`: embeddings have length one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from export.config.config_reader import ConfigReader
from export.config.weight_names import Rename
from export.layers.images.image_heads import ImageModel, Mean
from export.models.vision.swin import NetworkConfig, Swin, read_network_config, rename_network
from export.text_encoders.image_graphs import Head, ImageHead, image_architecture, read_head

# ---------------------------------------------------------------------------------------- config

HEADS: Mapping[str, Head] = {"SwinForImageClassification": "classify", "SwinModel": "embed"}


@dataclass(frozen=True, kw_only=True)
class Config(ImageHead):
    """The network and what is on top of it."""

    swin: NetworkConfig


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; what we lack is refused."""
    return Config(swin=read_network_config(ConfigReader(values)), **read_head(values, HEADS))


# --------------------------------------------------------------------------------------- network


def build(config: Config) -> ImageModel:
    """The network with the checkpoint's head."""
    network, width = Swin(config.swin), config.swin.width
    head = nn.Linear(width, config.classes) if config.head == "classify" else None
    return ImageModel(network, Mean(width), head, config.classes)


# ----------------------------------------------------------------------------------------- names


def rename(config: Config) -> Rename:
    """`transformers`' names → ours."""
    if config.head == "embed":
        return Rename(rename_network("", "network."))
    return Rename(rename_network("swin.", "network.") | {"classifier": "head"})


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = image_architecture(
    "swin",
    read_config,
    build,
    rename,
    image_size=lambda config: config.swin.image,
)
