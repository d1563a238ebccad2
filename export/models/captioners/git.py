"""GIT: a language model that reads an image in front of its text.

Paper: Wang et al. 2022, "GIT: A Generative Image-to-text Transformer for Vision and Language", §3.1
(arXiv 2205.14100): image tokens attend to each other, text tokens to the image and to earlier text.
Checkpoints: `model_type: git` (`microsoft/git-*`), images and not videos.

Legend: B batch, N image positions, R rows, T new positions, P past positions, D width,
V vocabulary.

Differences from `transformers`: image tokens are read once, by `admit`, and become the first
positions of the cache; pixels come as uint8 and are normalised in the graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from export.architecture import Architecture, Graphs, no_section
from export.config.config_reader import ConfigReader
from export.config.weight_names import Entry, Rename, bert_block
from export.decoder_graphs.source import image_source
from export.decoder_graphs.transformer import prefix_graphs
from export.layers.blocks import BASE, BlockConfig
from export.layers.images.vision import patch_count, prepare_tower
from export.models.dual_encoders import clip
from export.models.encoder_decoders import bert_decoder
from inference.bundle.inputs import ImageSpec
from inference.bundle.manifest import Limits

# ---------------------------------------------------------------------------------------- config


@dataclass(frozen=True, kw_only=True)
class Config(bert_decoder.Config):
    """The text decoder, and the image tower."""

    image_tower: BlockConfig
    image: tuple[int, int]
    patch: tuple[int, int]

    @property
    def image_positions(self) -> int:
        """N: patches and the class token."""
        return patch_count(self.image, self.patch) + 1

    @property
    def first_position(self) -> int:
        """Text positions are counted from 0 behind the image, whose tokens take none of them."""
        return -self.image_positions

    @property
    def positions(self) -> int:
        """Of text."""
        return self.table_rows

    @property
    def limits(self) -> Limits:
        """The position table bounds prompt and caption together."""
        return Limits(max_total_tokens=self.positions)


_DEFAULTS = BASE | {
    "vocab_size": 30522,
    "max_position_embeddings": 1024,
    "num_hidden_layers": 6,
    "tie_word_embeddings": False,
}


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; defaults are `transformers`' own."""
    reader = ConfigReader(values, defaults=_DEFAULTS)
    reader.refuse_unless(num_image_with_embedding=None, position_embedding_type="absolute")
    section = reader.section("vision_config", clip.IMAGE_DEFAULTS | {"patch_size": 16})
    image = section.read(clip.ImageConfig)
    return reader.read(
        Config,
        image_tower=image.tower,
        image=image.image,
        patch=image.patch,
        head_activation=None,
        segments=0,
        has_cross=False,
    )


# --------------------------------------------------------------------------------------- network


class ImageTower(nn.Module):
    """CLIP's ViT; every vector of it, brought to the decoder's width."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        tower = config.image_tower
        self.vit = clip.VisionTransformer(tower, config.image, config.patch)
        self.projection = nn.Sequential(
            nn.Linear(tower.width, config.width), nn.LayerNorm(config.width, eps=tower.norm_epsilon)
        )

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → (B, N, D)."""
        return self.projection(self.vit.norm(self.vit.hidden(pixels)))


class GIT(nn.Module):
    """Image tower and text decoder."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.encoder = ImageTower(config)
        self.decoder = bert_decoder.BertDecoder(config)


# ----------------------------------------------------------------------------------------- names


def rename(config: Config) -> Rename:
    """`transformers`' names → ours."""
    table: dict[str, Entry] = {
        **clip.vision_names("git.image_encoder.vision_model", "encoder.vit"),
        "git.visual_projection.visual_projection.*": "encoder.projection.*",
        "git.embeddings.word_embeddings": "decoder.tokens",
        "git.embeddings.position_embeddings": "decoder.positions",
        "git.embeddings.position_ids": None,
        "git.embeddings.LayerNorm": "decoder.embedding_norm",
        **bert_block("git.encoder.layer.*", "decoder.blocks.*"),
        "output.weight": "decoder.tokens.weight" if config.has_tied_output else "decoder.output",
        "output.bias": "decoder.output_bias",
    }
    return Rename(table)


# ---------------------------------------------------------------------------------------- graphs


def graphs(model: GIT, image: ImageSpec | None) -> Graphs:
    """`admit` (B dynamic) and `step` (R, T, P dynamic; in place)."""
    image = prepare_tower(model.encoder.vit, image)
    source = image_source(image, model.config.image_positions)
    return prefix_graphs(model.encoder, model.decoder, source)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = Architecture(
    name="git",
    tasks={"caption": no_section},
    read_config=read_config,
    build=GIT,
    rename=rename,
    graphs=graphs,
    image_size=lambda config: config.image,
)
