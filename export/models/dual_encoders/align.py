"""ALIGN: one embedding space for images and texts, of EfficientNet and BERT.

Paper: Jia et al. 2021, "Scaling Up Visual and Vision-Language Representation Learning With Noisy
Text Supervision", §4 (arXiv 2102.05918).
Checkpoints: `model_type: align` (`kakaobrain/align-base`), class `AlignModel`.

Legend: B batch, N cells, T text positions, E width of the common space.

Differences from `transformers`: as CLIP's; texts are given with their lengths, and are not padded
to 64 tokens, which the mask leaves out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from export.architecture import Architecture, LimitedByText
from export.checkpoint.checkpoint import Checkpoint
from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Rename
from export.layers.images.image_heads import mean_vector
from export.models.dual_encoders import clip
from export.models.dual_encoders.bert_clip import TextTower
from export.models.encoders import bert
from export.models.vision import efficientnet
from inference.bundle.inputs import ImageSpec
from inference.errors import CheckpointError

# ---------------------------------------------------------------------------------------- config


@dataclass(frozen=True, kw_only=True)
class Config(LimitedByText):
    """Both towers and the common space."""

    image: efficientnet.Config
    text: bert.Config
    embedding_width: int = key("projection_dim", 640)


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; defaults are `transformers`' own.

    Raises:
        CheckpointError: another class, or towers whose vectors are not of one width.
    """
    reader = ConfigReader(values)
    reader.refuse_classes_but("AlignModel")
    image = efficientnet.read_config(reader.section("vision_config"))
    section = reader.section("text_config")
    text = bert.BERT.read_config({**section.values, "architectures": None}, section.place)
    config = reader.read(Config, image=image, text=text)
    if config.embedding_width != image.width:
        raise CheckpointError(
            f"config.json: projection_dim = {config.embedding_width}, and images have vectors of "
            f"{image.width}"
        )
    return config


# --------------------------------------------------------------------------------------- network


class ImageTower(nn.Module):
    """The mean of the last cells represents the image."""

    def __init__(self, config: efficientnet.Config) -> None:
        super().__init__()
        self.network = efficientnet.EfficientNet(config)

    def prepare(self, image: ImageSpec) -> None:
        """Takes prepared uint8 pixels from now on, not a normalised image."""
        self.network.prepare(image)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → (B, E), of length one."""
        return functional.normalize(mean_vector(self.network(pixels)), dim=-1)


class Align(nn.Module):
    """Both towers and the trained temperature."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.image = ImageTower(config.image)
        self.text = TextTower(config.text, config.embedding_width, bias=True)
        self.temperature = nn.Parameter(torch.ones(()))


def graphs(model: Align, image: ImageSpec | None) -> Any:
    """One graph a tower (B, and T of texts, dynamic)."""
    return clip.tower_graphs(model, image, clip.TEXTS, model.text.projection.out_features)


def zero_shot_section(model: Align, checkpoint: Checkpoint) -> dict[str, Any]:
    """The temperature, by which cosines are divided.

    Raises:
        CheckpointError: it is not positive: scores would not increase with cosines.
    """
    temperature = model.temperature.item()
    if not temperature > 0:
        raise CheckpointError(f"{checkpoint.folder}: temperature = {temperature} must be positive")
    return {"logit_scale": 1 / temperature}


def rename(config: Config) -> Rename:
    """`transformers`' names → ours."""
    encoder = Rename({**bert.BERT.encoder_names(), "pooler.dense": None})
    return Rename(
        {
            **Rename(efficientnet.NAMES).prefixed("vision_model.", "image.network."),
            **encoder.prefixed("text_model.", "text."),
            "text_projection": "text.projection",
            "temperature": "temperature",
        }
    )


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = Architecture(
    name="align",
    tasks={"zero-shot": zero_shot_section},
    read_config=read_config,
    build=Align,
    rename=rename,
    graphs=graphs,
    image_size=lambda config: config.image.image,
)
