"""Configuration of Idefics, whose network is in `idefics.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from export.config.config_reader import ConfigReader
from export.layers.attention.heads import Heads
from export.layers.attention.rotary_config import read_rotary
from export.layers.block_config import BlockConfig
from export.layers.images.vision import patch_count
from export.models.vision_language import perceiver_resampler
from export.tokenizer.prompt_images import IMAGE_TOKEN
from inference.bundle.manifest import Limits
from inference.errors import CheckpointError


@dataclass(frozen=True)
class ImageConfig:
    """The image tower, and the resampler where there is one."""

    tower: BlockConfig
    image: tuple[int, int]
    patch: tuple[int, int]
    resampler: perceiver_resampler.Config | None

    @property
    def positions(self) -> int:
        """L: latents, or patches and the class token."""
        if self.resampler is not None:
            return self.resampler.latents
        return patch_count(self.image, self.patch) + 1


@dataclass(frozen=True)
class Config:
    """The network's part of `config.json`."""

    image: ImageConfig
    vocabulary_size: int
    added_tokens: int
    """A: behind the vocabulary, in tables of their own."""
    positions: int
    layers: int
    heads: Heads
    mlp_width: int
    activation: str
    norm_epsilon: float
    interval: int
    """A gated block is in front of every so many layers, from the first on."""
    gate: Literal["float", "vector"]
    has_head_norms: bool
    has_tied_output: bool
    image_token: int
    end_token: int | None

    @property
    def width(self) -> int:
        """D."""
        return self.heads.model_width

    @property
    def gated_blocks(self) -> int:
        """Number of gated blocks."""
        return self.layers // self.interval

    @property
    def limits(self) -> Limits:
        """Positions bound prompt and answer together; one place is for the answer."""
        return Limits(max_input_tokens=self.positions - 1, max_total_tokens=self.positions)


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; defaults are `transformers`' own."""
    reader = ConfigReader(values)
    reader.refuse_unless(head_dim=None)
    reader.refuse_heads("ForVisionText2Text")
    width, count = reader.integer("hidden_size", 4096), reader.integer("num_attention_heads", 32)
    reader.divide(width, count)
    interval, layers = (
        reader.integer("cross_layer_interval", 1),
        reader.layers("num_hidden_layers", 32),
    )
    if layers % interval:
        raise CheckpointError(
            f"{reader.place}: num_hidden_layers = {layers} is not a multiple of "
            f"cross_layer_interval = {interval}"
        )
    positions = reader.integer("max_position_embeddings", 2048)
    vocabulary = reader.integer("vocab_size", 32000)
    added = reader.index("additional_vocab_size", 0)
    # the published checkpoints' second added token, where no tokenizer gives its id
    image_token = reader.index(IMAGE_TOKEN, vocabulary + 1)
    if image_token >= vocabulary + added:
        raise CheckpointError(
            f"{reader.place}: {IMAGE_TOKEN} = {image_token} is outside the vocabulary of "
            f"{vocabulary} tokens and {added} added ones"
        )
    ends = values.get("eos_token_id", 2)
    return Config(
        image=_read_image(reader),
        vocabulary_size=vocabulary,
        added_tokens=added,
        positions=positions,
        layers=layers,
        heads=Heads(
            width,
            count,
            bias=False,
            out_bias=False,
            rotary=read_rotary(reader, width // count, positions),
        ),
        mlp_width=reader.integer("intermediate_size", 11008),
        activation=reader.activation("hidden_act", "silu"),
        norm_epsilon=reader.number("rms_norm_eps", 1e-6),
        interval=interval,
        gate=cast(
            Literal["float", "vector"], reader.choice("alpha_type", ("float", "vector"), "float")
        ),
        has_head_norms=reader.flag("qk_layer_norms", False),
        has_tied_output=reader.flag("tie_word_embeddings", False),
        image_token=image_token,
        end_token=ends[0] if isinstance(ends, list) else ends,
    )


def _read_image(reader: ConfigReader) -> ImageConfig:
    vision = reader.section("vision_config")
    vision.refuse_unless(num_channels=3)
    width, heads = vision.integer("embed_dim", 768), vision.integer("num_attention_heads", 16)
    vision.divide(width, heads)
    tower = BlockConfig(
        layers=vision.layers("num_hidden_layers", 32),
        heads=Heads(width, heads),
        mlp_width=vision.integer("intermediate_size", 5120),
        activation=vision.activation("hidden_act", "gelu"),
        norm_epsilon=vision.number("layer_norm_eps", 1e-5),
    )
    has_resampler = reader.flag("use_resampler", False)
    return ImageConfig(
        tower,
        image=vision.pair("image_size", 224),
        patch=vision.pair("patch_size", 14),
        resampler=perceiver_resampler.read_config(reader, width) if has_resampler else None,
    )
