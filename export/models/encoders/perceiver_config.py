"""The configuration of a Perceiver: the latents, the widths of its layers, and its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from export.checkpoint.labels import labels
from export.config.config_reader import ConfigReader
from export.layers.images.pixel_arrays import (
    ConvolvedPixels,
    FourierPixels,
    LearnedPixels,
    PixelArray,
)
from export.layers.latents import LatentShape
from export.text_encoders.heads import HeadConfig, HeadKind, read_head
from inference.bundle.manifest import Limits
from inference.errors import CheckpointError

PREFIX = "Perceiver"
LEARNED, FOURIER, CONVOLVED = (
    f"PerceiverForImageClassification{form}" for form in ("Learned", "Fourier", "ConvProcessing")
)
PIXELS: Mapping[str, type[PixelArray]] = {
    LEARNED: LearnedPixels,
    FOURIER: FourierPixels,
    CONVOLVED: ConvolvedPixels,
}
TEXTS = (HeadKind.MASKED, HeadKind.SEQUENCE)
MASK_HEADS, MASK_KEY_WIDTH = 8, 256  # of the layer that decodes masked tokens, in every checkpoint


@dataclass(frozen=True)
class Config:
    """The latents, the three kinds of layers, and the inputs."""

    latents: int
    """N."""
    repeats: int
    """Times that the layers are applied, with the same weights."""
    layers: int
    read: LatentShape
    """Of the layer that reads the inputs."""
    process: LatentShape
    """Of the layers between latents."""
    vocabulary_size: int
    positions: int
    image_size: tuple[int, int]
    """Height and width; learned positions belong to it."""
    image: str | None
    """The class of an image classifier."""
    head: HeadConfig
    """Of a text; an image classifier's has its labels."""

    @property
    def limits(self) -> Limits:
        """The position table."""
        return Limits() if self.image else Limits(max_input_tokens=self.positions)

    @property
    def width(self) -> int:
        """D."""
        return self.process.width


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; defaults are `transformers`' own."""
    reader = ConfigReader(values)
    image, head = _head(reader)
    token_width = reader.integer("d_model", 768)
    inputs = PIXELS[image].width if image else token_width
    if head.fills_masks:
        reader.divide(token_width, MASK_HEADS)
    return Config(
        latents=reader.integer("num_latents", 256),
        repeats=reader.layers("num_blocks", 1),
        layers=reader.layers("num_self_attends_per_block", 26),
        read=_reading(reader, inputs),
        process=_processing(reader),
        vocabulary_size=reader.integer("vocab_size", 262),
        positions=reader.integer("max_position_embeddings", 2048),
        image_size=_image_size(reader, image),
        image=image,
        head=head,
    )


def _head(reader: ConfigReader) -> tuple[str | None, HeadConfig]:
    """The class of an image classifier, if it is one, and the head."""
    listed = reader.values.get("architectures") or [None]
    if listed[0] in PIXELS:
        return listed[0], HeadConfig(HeadKind.SEQUENCE, labels(reader.values))
    supported = [f"{PREFIX}{kind}" for kind in TEXTS] + list(PIXELS)
    if listed[0] not in supported:
        raise CheckpointError(
            f"{reader.place}: architectures = {listed!r} is not supported (optical flow and "
            f"multimodal autoencoding are not); supported are: {', '.join(supported)}"
        )
    return None, read_head(reader, PREFIX, TEXTS)


def _image_size(reader: ConfigReader, image: str | None) -> tuple[int, int]:
    if image == LEARNED:
        side = reader.integer("image_size", 56)
        return side, side
    return reader.pair("image_size", 56)


def _reading(reader: ConfigReader, inputs: int) -> LatentShape:
    width, heads = reader.integer("d_latents", 1280), reader.integer("num_cross_attention_heads", 8)
    default = {"kv": inputs, "q": width}
    shape = reader.choice("cross_attention_shape_for_attention", default, "kv")
    return _shape(
        reader,
        width,
        inputs,
        heads,
        default[shape],
        factor=reader.integer("cross_attention_widening_factor", 1),
        has_residual=reader.flag("use_query_residual", True),
    )


def _processing(reader: ConfigReader) -> LatentShape:
    width, heads = reader.integer("d_latents", 1280), reader.integer("num_self_attention_heads", 8)
    factor = reader.integer("self_attention_widening_factor", 1)
    shape = _shape(reader, width, width, heads, width, factor=factor)
    if shape.value_width != width:  # the output is as wide as the values, and added to the latents
        raise CheckpointError(
            f"{reader.place}: v_channels = {shape.value_width} must be d_latents = {width}"
        )
    return shape


def _shape(
    reader: ConfigReader,
    width: int,
    source_width: int,
    heads: int,
    key_width: int,
    *,
    factor: int,
    has_residual: bool = True,
) -> LatentShape:
    """The widths of a layer of the encoder, where `qk_channels` and `v_channels` may be given."""
    key_width = reader.integer("qk_channels", key_width)
    value_width = reader.integer("v_channels", key_width)
    for each in (width, key_width, value_width):
        reader.divide(each, heads)
    activation = reader.activation("hidden_act", "gelu")
    return LatentShape(
        width, source_width, heads, key_width, value_width, factor * width, activation, has_residual
    )
