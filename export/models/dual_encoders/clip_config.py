"""Configuration of CLIP and of what is built on its towers, whose networks are in `clip.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from export.architecture import LimitedByPositions, LimitedByText
from export.config.config_reader import ConfigReader
from export.layers.block_config import BlockConfig, read_blocks
from inference.errors import CheckpointError

LEGACY_END_TOKEN = 2  # written by old versions for every checkpoint, true or not


@dataclass(frozen=True)
class ImageConfig:
    """The ViT; sizes are (height, width)."""

    tower: BlockConfig
    image: tuple[int, int]
    patch: tuple[int, int]


@dataclass(frozen=True)
class TextConfig(LimitedByPositions):
    """The text tower."""

    tower: BlockConfig
    vocabulary_size: int
    positions: int
    end_token: int | None
    """None: the largest id of a text is its end token, as in CLIP's published code."""


@dataclass(frozen=True)
class Config(LimitedByText):
    """Both towers and the common space."""

    image: ImageConfig
    text: TextConfig
    embedding_width: int


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; defaults are `transformers`' own."""
    image, text = _section(values, "vision"), _section(values, "text")
    image.refuse_unless(num_channels=3)
    end_token = text.values.get("eos_token_id", 49407)
    if not isinstance(end_token, int):
        raise CheckpointError(f"{text.place}: eos_token_id must be one id, not {end_token!r}")
    return Config(
        ImageConfig(
            read_tower(image, width=768, mlp_width=3072, heads=12),
            image=image.pair("image_size", 224),
            patch=image.pair("patch_size", 32),
        ),
        TextConfig(
            read_tower(text, width=512, mlp_width=2048, heads=8),
            vocabulary_size=text.integer("vocab_size", 49408),
            positions=text.integer("max_position_embeddings", 77),
            end_token=None if end_token == LEGACY_END_TOKEN else end_token,
        ),
        embedding_width=ConfigReader(values).integer("projection_dim", 512),
    )


def _section(values: Mapping[str, Any], side: str) -> ConfigReader:
    """A tower's section; `*_config_dict` of old checkpoints takes precedence."""
    reader = ConfigReader(values)
    old = f"{side}_config_dict"
    return reader.section(old if values.get(old) is not None else f"{side}_config")


def read_tower(reader: ConfigReader, width: int, mlp_width: int, heads: int) -> BlockConfig:
    """A tower's section of `config.json`, with the defaults of `transformers`."""
    sizes = {"width": width, "mlp_width": mlp_width, "heads": heads}
    fields = read_blocks(reader, **sizes, activation="quick_gelu", norm_epsilon=1e-5)
    return BlockConfig(**fields)
