"""CLIP with a text tower that was pre-trained on texts alone: BERT or XLM-R.

Papers: Yang et al. 2022, "Chinese CLIP: Contrastive Vision-Language Pretraining in Chinese", §3
(arXiv 2211.01335); Chen et al. 2022, "AltCLIP: Altering the Language Encoder in CLIP for Extended
Language Capabilities", §3 (arXiv 2211.06679).
Checkpoints: `model_type: chinese_clip` (`OFA-Sys/chinese-clip-vit-*`) and `altclip`
(`BAAI/AltCLIP`, `BAAI/AltCLIP-m9`, `-m18`).

Legend: B batch, T text positions, D width of the text tower, A width of AltCLIP's teacher, E width
of the common space.

Differences from `transformers`: as CLIP's; texts are given with their lengths instead of a mask,
because attention is not causal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from export.architecture import Architecture, LimitedByText
from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Names, Rename
from export.models.dual_encoders import clip
from export.models.encoders import bert

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
