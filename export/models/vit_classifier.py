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

from torch import Tensor, nn
from torch.nn import functional

from export.architecture import Architecture, Graphs, Lowering, no_section
from export.config_reader import ConfigReader
from export.image_graphs import Head, head_of, image_graphs, rollout
from export.labels import classify_section, labels
from export.layers.activation import activation
from export.models import vit
from export.rename import Entry, Rename
from export.twin import Twin
from serving.bundle import ImageSpec, Limits

# ---------------------------------------------------------------------------------------- config

HEADS: Mapping[str, Head] = {"ViTForImageClassification": "classify", "ViTModel": "embed"}


@dataclass(frozen=True)
class Config:
    """The network and what is on top of it."""

    vit: vit.Config
    head: Head
    classes: int
    pooler_width: int
    pooler_activation: str

    @property
    def limits(self) -> Limits:
        """None on text."""
        return Limits()


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; what we lack is refused."""
    reader = ConfigReader(values)
    network = vit.read_config(reader)
    return Config(
        vit=network,
        head=head_of(values, HEADS)[1],
        classes=len(labels(values)),
        pooler_width=reader.integer("pooler_output_size", network.width),
        pooler_activation=reader.text("pooler_act", "tanh"),
    )


# --------------------------------------------------------------------------------------- network


class Classifier(nn.Module):
    """Class scores from the class token."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.vit = vit.ViT(config.vit)
        self.head = nn.Linear(config.vit.width, config.classes)

    @property
    def output_width(self) -> int:
        """C."""
        return self.head.out_features

    def prepare(self, image: ImageSpec) -> None:
        """As `ViT.prepare`."""
        self.vit.prepare(image)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → logits (B, C)."""
        return self.head(self.vit(pixels)[:, 0])


class Pooler(nn.Module):
    """A layer on the class token; all zeros stand for a checkpoint that has none."""

    def __init__(self, width: int, output_width: int, activation_name: str) -> None:
        super().__init__()
        self.dense = nn.Linear(width, output_width)
        self.activation = activation(activation_name)
        nn.init.zeros_(self.dense.weight)
        nn.init.zeros_(self.dense.bias)

    def forward(self, x: Tensor) -> Tensor:
        """The class token's vector (B, D) → (B, output width)."""
        return self.activation(self.dense(x))


class Encoder(nn.Module):
    """One vector of length one for each image."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.vit = vit.ViT(config.vit)
        self.pooler = Pooler(config.vit.width, config.pooler_width, config.pooler_activation)
        self.is_pooled = True

    def prepare(self, image: ImageSpec) -> None:
        """As `ViT.prepare`; from now on the pooler is used where the checkpoint has one."""
        self.vit.prepare(image)
        self.is_pooled = bool(self.pooler.dense.weight.any())

    @property
    def output_width(self) -> int:
        """D of the embeddings."""
        dense = self.pooler.dense
        return dense.out_features if self.is_pooled else dense.in_features

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → (B, D)."""
        pooled = self.vit(pixels)[:, 0]
        if self.is_pooled:
            pooled = self.pooler(pooled)
        return functional.normalize(pooled, dim=-1)


def build(config: Config) -> Classifier | Encoder:
    """The network with the checkpoint's head."""
    return Classifier(config) if config.head == "classify" else Encoder(config)


# ---------------------------------------------------------------------------------------- rename


def rename(config: Config) -> Rename:
    """`transformers`' names → ours."""
    if config.head == "classify":
        return Rename(vit.rename("vit.", "vit.") | {"classifier": "head"})
    pooler: dict[str, Entry] = {"pooler.dense": "pooler.dense"}
    optional = frozenset({"pooler.dense.weight", "pooler.dense.bias"})
    return Rename(vit.rename("", "vit.") | pooler, optional)


# ---------------------------------------------------------------------------------------- graphs


def graphs(model: Classifier | Encoder, image: ImageSpec | None) -> Graphs:
    """One graph: pixels to logits, or to an embedding."""
    assert image is not None
    model.prepare(image)
    head: Head = "classify" if isinstance(model, Classifier) else "embed"
    return image_graphs(model, image, head, model.output_width)


def attention(model: Classifier | Encoder, image: ImageSpec) -> Lowering:
    """The class token's attention to the patches."""
    return rollout(model.vit, image)


# ------------------------------------------------------------------------------------------ twin

_TINY = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 40,
    "image_size": 32,
    "patch_size": 8,
}
_CLASSIFIER = _TINY | {
    "architectures": ["ViTForImageClassification"],
    "id2label": {0: "cat", 1: "dog", 2: "owl"},
}

TWIN = Twin(
    reference="transformers:ViTForImageClassification",
    configs={
        "plain": _CLASSIFIER,
        "not-square": _CLASSIFIER
        | {
            "image_size": [28, 42],
            "patch_size": [7, 14],
            "qkv_bias": False,
            "layer_norm_eps": 1e-3,
            "id2label": {number: f"class {number}" for number in range(9)},
        },
        "patch-14": _CLASSIFIER
        | {"image_size": 45, "patch_size": 14, "hidden_act": "quick_gelu", "num_hidden_layers": 1},
        "resized": _CLASSIFIER | {"problem_type": "multi_label_classification"},
        "pooled": _TINY | {"pooler_output_size": 20, "pooler_act": "gelu"},
        "odd": _TINY | {"hidden_size": 30, "num_attention_heads": 3, "layer_norm_eps": 1e-3},
    },
    references={"pooled": "transformers:ViTModel", "odd": "transformers:ViTModel"},
    images={"resized": (40, 56), "odd": (24, 32)},
)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = Architecture(
    name="vit",
    tasks={"classify": classify_section, "embed": no_section},
    read_config=read_config,
    build=build,
    rename=rename,
    graphs=graphs,
    tokenizer=None,
    twin=TWIN,
    image_size=lambda config: config.vit.image,
    tasks_of=lambda config: (config.head,),
    attention=attention,
)
