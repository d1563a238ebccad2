"""Dual encoders with a text tower that was pre-trained on texts alone: BERT or XLM-R.

Papers: Yang et al. 2022, "Chinese CLIP: Contrastive Vision-Language Pretraining in Chinese", §3
(arXiv 2211.01335); Chen et al. 2022, "AltCLIP: Altering the Language Encoder in CLIP for Extended
Language Capabilities", §3 (arXiv 2211.06679); Jia et al. 2021, "Scaling Up Visual and
Vision-Language Representation Learning With Noisy Text Supervision", §4 (arXiv 2102.05918): ALIGN,
whose images EfficientNet reads.
Checkpoints: `model_type: chinese_clip` (`OFA-Sys/chinese-clip-vit-*`), `altclip` (`BAAI/AltCLIP`,
`BAAI/AltCLIP-m9`, `-m18`) and `align` (`kakaobrain/align-base`).

Legend: B batch, T text positions, D width of the text tower, A width of AltCLIP's teacher, E width
of the common space.

Differences from `transformers`: as CLIP's; texts are given with their lengths instead of a mask,
because attention is not causal. ALIGN's are not padded to 64 tokens, which the mask leaves out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from export.architecture import Architecture, LimitedByText
from export.checkpoint.checkpoint import Checkpoint
from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Names, Rename
from export.layers.images.image_heads import mean_vector
from export.models.dual_encoders import clip
from export.models.encoders import bert
from export.models.vision import efficientnet
from inference.bundle.inputs import ImageSpec
from inference.errors import CheckpointError

# ---------------------------------------------------------------------------------------- config


@dataclass(frozen=True, kw_only=True)
class AltTextConfig(bert.RobertaConfig):
    """XLM-R, and the width of the text vectors that it was trained to imitate."""

    teacher_width: int = key("project_dim", 768)


@dataclass(frozen=True, kw_only=True)
class Config(LimitedByText):
    """Both towers and the common space."""

    image: clip.ImageConfig
    text: bert.Config
    embedding_width: int = key("projection_dim")


# --------------------------------------------------------------------------------------- network


class TextTower(nn.Module):
    """An encoder whose first token represents the text."""

    def __init__(self, config: bert.Config, embedding_width: int, *, bias: bool = False) -> None:
        super().__init__()
        self.encoder = bert.Encoder(config)
        self.projection = nn.Linear(config.width, embedding_width, bias=bias)

    @property
    def tokens(self) -> nn.Embedding:
        """The embedding table."""
        return self.encoder.tokens

    def forward(self, token_ids: Tensor, lengths: Tensor) -> Tensor:
        """(B, T) right-padded, (B,) → (B, E), of length one."""
        first = self.encoder.first(token_ids, lengths).squeeze(1)
        return functional.normalize(self.project(first), dim=-1)

    def project(self, first: Tensor) -> Tensor:
        """(B, D) of the first token → (B, E)."""
        return self.projection(first)


class AltTextTower(TextTower):
    """The first token becomes the teacher's vector, and that one of the common space."""

    def __init__(self, config: bert.Config, embedding_width: int) -> None:
        super().__init__(config, embedding_width)
        assert isinstance(config, AltTextConfig)
        self.norm = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        self.to_teacher = nn.Linear(config.width, config.teacher_width)
        self.projection = nn.Linear(config.teacher_width, embedding_width, bias=False)

    def project(self, first: Tensor) -> Tensor:
        """(B, D) of the first token → (B, E)."""
        return self.projection(self.to_teacher(self.norm(first)))


# -------------------------------------------------------------------------------------- families


@dataclass(frozen=True, kw_only=True)
class Family:
    """What tells a family from the other.

    Attributes:
        name: Of the architecture.
        model: Its class in `transformers`.
        embedding_width: Default of E.
        text: The text encoder's family.
        tower: The text tower.
        prefix: Of the text encoder's tensors.
        further: Names beside CLIP's and the text encoder's.
    """

    name: str
    model: str
    embedding_width: int
    text: bert.Family
    tower: type[TextTower] = TextTower
    prefix: str
    further: Names = field(default_factory=dict)

    def read_config(self, values: Mapping[str, Any]) -> Config:
        """The configuration; defaults are `transformers`' own."""
        reader = ConfigReader(values, defaults={"projection_dim": self.embedding_width})
        reader.refuse_classes_but(self.model)
        section = clip.tower_section(reader, "text", {})
        text = self.text.read_config({**section.values, "architectures": None}, section.place)
        return reader.read(Config, image=clip.read_image(reader), text=text)

    def build(self, config: Config) -> clip.CLIP:
        """Both towers and the trained temperature."""
        width = config.embedding_width
        return clip.CLIP(clip.ImageTower(config.image, width), self.tower(config.text, width))

    def rename(self, config: Config) -> Rename:
        """`transformers`' names → ours."""
        encoder = Rename({**self.text.encoder_names(), "pooler.dense": None})
        return Rename(
            {
                **clip.vision_names("vision_model", "image"),
                "visual_projection": "image.projection",
                **encoder.prefixed(self.prefix, "text."),
                **self.further,
                "text_projection": "text.projection",
                "logit_scale": "logit_scale",
            }
        )

    def declare(self) -> Architecture:
        """The architecture."""
        return Architecture(
            name=self.name,
            tasks={"zero-shot": clip.zero_shot_section},
            read_config=self.read_config,
            build=self.build,
            rename=self.rename,
            graphs=clip.graphs,
            image_size=lambda config: config.image.image,
        )


CHINESE_CLIP = Family(
    name="chinese_clip",
    model="ChineseCLIPModel",
    embedding_width=512,
    text=bert.BERT,
    prefix="text_model.",
).declare()

ALTCLIP = Family(
    name="altclip",
    model="AltCLIPModel",
    embedding_width=768,
    text=replace(
        bert.BERT,
        config=AltTextConfig,
        defaults={
            "vocab_size": 250002,
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
            "max_position_embeddings": 514,
            "type_vocab_size": 1,
            "layer_norm_eps": 1e-5,
        },
    ),
    tower=AltTextTower,
    prefix="text_model.roberta.",
    further={
        "text_model.pre_LN": "text.norm",
        "text_model.transformation": "text.to_teacher",
        # `layers` in published files
        **clip.layer_names("vision_model.encoder.layer.*", "image.blocks.*"),
    },
).declare()

# ----------------------------------------------------------------------------------------- ALIGN


@dataclass(frozen=True, kw_only=True)
class AlignConfig(LimitedByText):
    """Both towers and the common space."""

    image: efficientnet.Config
    text: bert.Config
    embedding_width: int = key("projection_dim", 640)


def read_align(values: Mapping[str, Any]) -> AlignConfig:
    """The configuration; defaults are `transformers`' own.

    Raises:
        CheckpointError: another class, or towers whose vectors are not of one width.
    """
    reader = ConfigReader(values)
    reader.refuse_classes_but("AlignModel")
    image = efficientnet.read_config(reader.section("vision_config"))
    section = reader.section("text_config")
    text = bert.BERT.read_config({**section.values, "architectures": None}, section.place)
    config = reader.read(AlignConfig, image=image, text=text)
    if config.embedding_width != image.width:
        raise CheckpointError(
            f"config.json: projection_dim = {config.embedding_width}, and images have vectors of "
            f"{image.width}"
        )
    return config


class AlignImageTower(nn.Module):
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

    def __init__(self, config: AlignConfig) -> None:
        super().__init__()
        self.image = AlignImageTower(config.image)
        self.text = TextTower(config.text, config.embedding_width, bias=True)
        self.temperature = nn.Parameter(torch.ones(()))


def align_section(model: Align, checkpoint: Checkpoint) -> dict[str, Any]:
    """The temperature, by which cosines are divided.

    Raises:
        CheckpointError: it is not positive: scores would not increase with cosines.
    """
    temperature = model.temperature.item()
    if not temperature > 0:
        raise CheckpointError(f"{checkpoint.folder}: temperature = {temperature} must be positive")
    return {"logit_scale": 1 / temperature}


def rename_align(config: AlignConfig) -> Rename:
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


ALIGN = Architecture(
    name="align",
    tasks={"zero-shot": align_section},
    read_config=read_align,
    build=Align,
    rename=rename_align,
    graphs=clip.graphs,
    image_size=lambda config: config.image.image,
)
