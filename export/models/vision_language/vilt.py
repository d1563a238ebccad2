"""ViLT: one encoder over the words of a text and the patches of an image.

Paper: Kim et al. 2021, "ViLT: Vision-and-Language Transformer Without Convolution or Region
Supervision", §3.1 (arXiv 2102.03334): patches are projected as in ViT, words are BERT's, and either
kind has a vector of its own.
Checkpoints: `model_type: vilt` (`dandelin/vilt-b32-finetuned-*`), classes
`ViltForQuestionAnswering` and `ViltForImageAndTextRetrieval`.

Legend: B batch, T text positions, N patches, P side of the grid of positions, C classes, D width.

Differences from `transformers`: pixels come as uint8, and images of one call have one size, so that
none is padded and there is no mask of pixels; patches stay in their order, which attention does not
see; texts are given with their lengths. The text's first vector is the first of all, so that the
last block computes it alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from export.architecture import Architecture, Graphs, lower_stateless
from export.checkpoint.checkpoint import Checkpoint
from export.checkpoint.labels import labels
from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Names, Rename, WeightLayout
from export.layers.blocks import BASE, EncoderBlock, make_encoder_blocks
from export.layers.images.vision import (
    AnySizeTower,
    PatchEmbedding,
    patch_grid,
    pixels_port,
    prepare_tower,
)
from export.models.encoders import bert
from export.models.vision import vit
from export.text_encoders.declaration import TEXTS
from export.text_encoders.heads import HeadConfig, HeadKind
from export.text_encoders.image_graphs import Head, head_of
from inference.bundle.inputs import ImageSpec
from inference.bundle.manifest import Role
from inference.bundle.manifest import Tensor as Port

# ---------------------------------------------------------------------------------------- config

QUESTION, RETRIEVAL = "ViltForQuestionAnswering", "ViltForImageAndTextRetrieval"
HEADS: Mapping[str, Head] = {QUESTION: "classify", RETRIEVAL: "classify"}
MATCH = ("match",)
"""The one class of retrieval."""


@dataclass(frozen=True, kw_only=True)
class Config(bert.Config):
    """The network and its classes."""

    supported = {"num_channels": 3, "max_image_length": -1}
    image_size: int = key("image_size", 384)
    patch: int = key("patch_size", 32)
    kinds: int = key("modality_type_vocab_size", 2, least=2)
    """Words, patches, and others that are not read."""

    @property
    def image(self) -> tuple[int, int]:
        """Of which the grid has a position for each patch."""
        return self.image_size, self.image_size


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; defaults are `transformers`' own.

    Raises:
        CheckpointError: another head, or values that we lack.
    """
    reader = ConfigReader(values, defaults=BASE | {"max_position_embeddings": 40})
    head = HeadConfig(HeadKind.SEQUENCE, MATCH, activation="none")
    if head_of(values, HEADS)[0] == QUESTION:
        # each answer has a probability of its own, as in the pipeline of `transformers`
        head = HeadConfig(HeadKind.SEQUENCE, labels(values), activation="sigmoid")
    config: Config = vit.read_config(reader, Config, head=head)
    return config


# --------------------------------------------------------------------------------------- network


class Vilt(AnySizeTower):
    """Image and text → logits of their classes."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, classes = config.width, len(config.head.labels)
        self.head_config = config.head
        self.side, _ = patch_grid(config.image, (config.patch, config.patch))
        self.text = bert.Encoder(replace(config, layers=0))
        self.patches = PatchEmbedding(width, (config.patch, config.patch), bias=True)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Embedding(1 + self.side**2, width)
        self.kinds = nn.Embedding(config.kinds, width)
        self.blocks = make_encoder_blocks(config, is_norm_first=True)
        self.norm = nn.LayerNorm(width, eps=config.norm_epsilon)
        self.pooler = nn.Linear(width, width)
        self.head: nn.Module = nn.Linear(width, classes)
        if config.head.labels != MATCH:
            last = nn.Linear(2 * width, classes)
            inner = nn.Linear(width, 2 * width), nn.LayerNorm(2 * width), nn.GELU()
            self.head = nn.Sequential(*inner, last)

    def forward(self, pixels: Tensor, token_ids: Tensor, lengths: Tensor) -> Tensor:
        """(B, height, width, 3) uint8, (B, T) right-padded, (B,) → (B, C)."""
        image = self.embed_image(pixels) + self.kinds.weight[1]
        text = self.text.embed(token_ids, None) + self.kinds.weight[0]
        x = torch.cat([text[:, :1], image, text[:, 1:]], dim=1)
        lengths = lengths + image.shape[1]
        for block in self.blocks[:-1]:
            x = block(x, lengths)
        last = self.blocks[-1]
        assert isinstance(last, EncoderBlock)
        first = self.norm(last.first(x, lengths)).squeeze(1)
        return self.head(self.pooler(first).tanh())

    def embed_image(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → (B, 1 + N, D): the class token, and the patches."""
        patches = self.patches.projection(self.pixel_norm(pixels))
        first, grid = self.positions.weight[:1], self.positions.weight[1:]
        grid = functional.interpolate(
            grid.unflatten(0, (1, self.side, self.side)).permute(0, 3, 1, 2),
            size=patches.shape[2:],
            mode="bilinear",
            align_corners=True,
        )
        leading = (self.class_token + first).expand(patches.shape[0], -1, -1)
        return torch.cat([leading, (patches + grid).flatten(2).transpose(1, 2)], dim=1)


# ----------------------------------------------------------------------------------------- names

NAMES: Names = {
    **{name: ours for name, ours in vit.VIT_NAMES.items() if name.startswith("encoder.")},
    **bert.embedding_names("embeddings.text_embeddings", "text"),
    "embeddings.cls_token": "class_token",
    "embeddings.patch_embeddings.projection": "patches.projection",
    "embeddings.position_embeddings": WeightLayout(("positions.weight",), is_squeezed=True),
    "embeddings.token_type_embeddings": "kinds",
    "layernorm": "norm",
    "pooler.dense": "pooler",
}


def rename(config: Config) -> Rename:
    """`transformers`' names → ours."""
    heads = {"rank_output": "head", **{f"classifier.{n}": f"head.{n}" for n in (0, 1, 3)}}
    return Rename(Rename(NAMES).prefixed("vilt.", "") | heads)


# ---------------------------------------------------------------------------------------- graphs


def graphs(model: Vilt, image: ImageSpec | None) -> Graphs:
    """One graph (B, height, width and T dynamic)."""
    image = prepare_tower(model, image)
    patch = model.patches.projection.kernel_size[0]
    sizes = {"height": 3 * patch + 1, "width": 5 * patch + 2}
    return pair_graphs(model, pixels_port(image, has_sizes=True), sizes)


def pair_graphs(model: Any, pixels: Port, traced_sizes: Mapping[str, int]) -> Graphs:
    """The graph of a classifier of images with texts."""
    labels = model.head_config.labels
    logits = Port(name="logits", dtype="float32", shape=("B", len(labels)), role=Role.LOGITS)
    sizes = {"T": 9, **traced_sizes}
    lowering = lower_stateless(model, (pixels, *TEXTS), logits, traced_sizes=sizes)
    vocabulary = model.text.tokens.num_embeddings
    return Graphs({"pair": lowering}, parts={"pair": ""}, source_vocabulary=vocabulary)


def classify_section(model: Any, checkpoint: Checkpoint) -> dict[str, Any]:
    """The classes, and what makes scores of their logits."""
    head = model.head_config
    return {"labels": head.labels, "activation": head.activation}


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = Architecture(
    name="vilt",
    tasks={"classify": classify_section},
    read_config=read_config,
    build=Vilt,
    rename=rename,
    graphs=graphs,
    image_size=lambda config: config.image,
)
