"""Configuration of Qwen2-VL, whose network is in `qwen2_vl.py`: its image tower and language model.

Legend: M rows and columns of a square's patches, P pixels of a patch's side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from export.architecture import LimitedByText
from export.config.config_reader import ConfigReader
from export.layers.attention.heads import Heads
from export.layers.block_config import BlockConfig
from export.models.decoders import llama, qwen2
from inference.bundle.inputs import PatchGrid
from inference.errors import CheckpointError

_TEXT: Mapping[str, Any] = {
    "vocab_size": 152064,
    "hidden_size": 8192,
    "intermediate_size": 29568,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-5,
    "max_window_layers": 80,
    "rope_theta": 1000000.0,
}
"""What `transformers` takes where the file says nothing."""
_SECTIONS = {"mrope_section": [16, 24, 24]}
EPSILON = 1e-6
"""Of the tower's norms."""


@dataclass(frozen=True)
class TowerConfig:
    """The image tower.

    Attributes:
        blocks: Its blocks.
        patch: P.
        frames: Of the short video that an image is.
        merge: M.
        base: Of the rotary frequencies.
    """

    blocks: BlockConfig
    patch: int
    frames: int
    merge: int
    base: float

    @property
    def grid(self) -> PatchGrid:
        """How an image becomes vectors."""
        return PatchGrid(edge=self.patch * self.merge)


@dataclass(frozen=True)
class Config(LimitedByText):
    """Both halves."""

    tower: TowerConfig
    text: llama.Config
    image_token: int
    video_token: int

    @property
    def image(self) -> tuple[int, int]:
        """(height, width) of a small image, of two by two squares."""
        return 2 * self.tower.grid.edge, 2 * self.tower.grid.edge


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; defaults are `transformers`' own.

    Raises:
        CheckpointError: a tower or a language model of another kind.
    """
    reader = ConfigReader(values)
    reader.refuse_heads("ForConditionalGeneration")
    vision = reader.section("vision_config")
    width = vision.integer("embed_dim", 1280)
    blocks = read_blocks(vision, width, width * vision.integer("mlp_ratio", 4), "quick_gelu")
    text = read_text(reader)
    vision.refuse_unless(hidden_size=text.width)
    return Config(read_tower(vision, blocks), text, **read_tokens(reader, text))


def read_blocks(vision: ConfigReader, width: int, mlp_width: int, activation: str) -> BlockConfig:
    """The tower's blocks.

    Args:
        width: E.
        activation: The default.

    Raises:
        CheckpointError: other than three channels, or heads that do not rotate along two axes.
    """
    vision.refuse_unless(in_channels=3, in_chans=3)
    count = vision.integer("num_heads", 16)
    vision.divide(width, 4 * count)
    return BlockConfig(
        layers=vision.layers("depth", 32),
        heads=Heads(width, count),
        mlp_width=mlp_width,
        activation=vision.activation("hidden_act", activation),
        norm_epsilon=EPSILON,
    )


def read_tower(vision: ConfigReader, blocks: BlockConfig) -> TowerConfig:
    """The tower around its blocks, whose heads rotate in pairs along two axes.

    Raises:
        CheckpointError: another kind of rotation.
    """
    given = vision.values.get("rope_parameters") or {}
    parameters = ConfigReader(given, f"{vision.place}, rope_parameters")
    parameters.refuse_unless(rope_type="axial")
    return TowerConfig(
        blocks,
        patch=vision.integer("patch_size", 14),
        frames=vision.integer("temporal_patch_size", 2),
        merge=vision.integer("spatial_merge_size", 2),
        base=parameters.number("rope_theta", 10000.0),
    )


def read_tokens(reader: ConfigReader, text: llama.Config) -> dict[str, int]:
    """The ids that stand for parts of images and videos, by the fields of `Config`.

    Raises:
        CheckpointError: that of images is outside the vocabulary.
    """
    return {
        "image_token": reader.token("image_token_id", 151655, text.vocabulary_size),
        "video_token": reader.index("video_token_id", 151656),
    }


def read_text(reader: ConfigReader) -> llama.Config:
    """The language model, of `text_config` or, in older files, of the file itself.

    Raises:
        CheckpointError: sections that are not those of its heads.
    """
    nested = reader.values.get("text_config")
    section = reader if nested is None else reader.section("text_config")
    given = section.given
    is_tied = any(each.flag("tie_word_embeddings", False) for each in (reader, section))
    rope = given.pop("rope_scaling", None) or given.pop("rope_parameters", None) or {}
    parameters = ConfigReader({"rope_parameters": rope}, section.place).section("rope_parameters")
    kinds = [kind for kind in ("rope_type", "type") if parameters.values.get(kind) == "mrope"]
    plain = dict.fromkeys(kinds, "default")
    values = {
        **_TEXT,
        **given,
        "tie_word_embeddings": is_tied,
        "rope_parameters": {**_SECTIONS, **parameters.values, **plain},
    }
    text = ConfigReader(values, section.place)
    heads = llama.read_heads(text, bias=True, out_bias=False)
    assert heads.rotary is not None
    sections = text.section("rope_parameters").sizes("mrope_section")
    if sum(sections) != heads.width // 2:
        raise CheckpointError(
            f"{text.place}: mrope_section = {list(sections)} must add up to the {heads.width // 2} "
            "pairs of a head"
        )
    heads = replace(heads, rotary=replace(heads.rotary, sections=sections))
    return llama.read_shape(text, qwen2.set_windows(text, heads))
