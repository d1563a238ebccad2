"""Swin as classifier and encoder of images.

Paper: Liu et al. 2021 (arXiv 2103.14030); the network is `swin`.
Checkpoints: `microsoft/swin-*` and others of `model_type: swin`: classes
`SwinForImageClassification` and `SwinModel`.

Difference from `transformers`: embeddings have length one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from export.architecture import Architecture, no_section
from export.config_reader import ConfigReader
from export.image_graphs import Head, head_of, image_graphs
from export.labels import classify_section, labels
from export.layers.image_heads import ImageModel, Mean
from export.models.swin import NetworkConfig, Swin, read_network_config, rename_network
from export.rename import Rename
from export.twin import Twin
from serving.bundle import Limits

# ---------------------------------------------------------------------------------------- config

HEADS: Mapping[str, Head] = {"SwinForImageClassification": "classify", "SwinModel": "embed"}


@dataclass(frozen=True)
class Config:
    """The network and what is on top of it."""

    swin: NetworkConfig
    head: Head
    classes: int
    limits: Limits = field(default_factory=Limits)


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; what we lack is refused."""
    network = read_network_config(ConfigReader(values))
    return Config(network, head_of(values, HEADS)[1], len(labels(values)))


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


# ------------------------------------------------------------------------------------------ twin

_TINY = {
    "embed_dim": 12,
    "depths": [2, 2],
    "num_heads": [2, 3],
    "window_size": 4,
    "mlp_ratio": 2,
    "image_size": 32,
    "patch_size": 4,
}
_CLASSIFIER = _TINY | {
    "architectures": ["SwinForImageClassification"],
    "id2label": {number: f"class {number}" for number in range(9)},
}

TWIN = Twin(
    reference="transformers:SwinForImageClassification",
    configs={
        "odd": _CLASSIFIER
        | {
            "qkv_bias": False,
            "layer_norm_eps": 1e-3,
            "window_size": 3,
            "depths": [2, 2],
            "image_size": [30, 46],
            "use_absolute_embeddings": True,
            "patch_size": [2, 2],
        },
        "plain": _CLASSIFIER | {"hidden_act": "gelu_new"},
        "padded": _TINY | {"window_size": 3, "depths": [2, 1, 2], "num_heads": [1, 2, 4]},
        "resized": _CLASSIFIER | {"use_absolute_embeddings": True},
    },
    references={"padded": "transformers:SwinModel"},
    images={"padded": (53, 90), "resized": (64, 40)},
)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = Architecture(
    name="swin",
    tasks={"classify": classify_section, "embed": no_section},
    read_config=read_config,
    build=build,
    rename=rename,
    graphs=image_graphs,
    tokenizer=None,
    twin=TWIN,
    image_size=lambda config: config.swin.image,
    tasks_of=lambda config: (config.head,),
)
