"""Configuration of Grounding DINO (`model_type: grounding-dino`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from export.config.config_reader import ConfigReader
from export.layers.attention.windows import Grid
from export.models.encoders import bert
from export.models.vision import swin_pyramid
from inference.bundle.manifest import Limits
from inference.errors import CheckpointError

GROUPS = 32
"""Of the norms of grids."""
_MOST_GRIDS = 5  # boxes of a further one would be larger than the image


@dataclass(frozen=True)
class Stack:
    """Layers of the encoder, or of the decoder."""

    layers: int
    heads: int
    mlp_width: int
    points: int
    """In each grid, of deformable attention."""


@dataclass(frozen=True)
class Config:
    """Both towers, and what reads them."""

    image: swin_pyramid.Config
    text: bert.Config
    width: int
    grids: int
    queries: int
    encoder: Stack
    decoder: Stack
    activation: str
    norm_epsilon: float
    base: float
    """Of the wavelengths of an image's positions."""
    shares_boxes: bool
    """Whether all layers of the decoder have one box head."""
    tokens: int
    """Of a text, at most."""

    @property
    def limits(self) -> Limits:
        """Of a text."""
        return Limits(max_input_tokens=min(self.tokens, self.text.positions))

    @property
    def strides(self) -> tuple[Grid, ...]:
        """Height and width in pixels of what a vector of each grid stands for."""
        strides = list(self.image.strides)
        while len(strides) < self.grids:
            strides.append((2 * strides[-1][0], 2 * strides[-1][1]))
        return tuple(strides)


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; defaults are `transformers`' own.

    Raises:
        CheckpointError: another class or tower, or what no published checkpoint has.
    """
    reader = ConfigReader(values)
    reader.refuse_heads("ForObjectDetection")
    reader.refuse_unless(
        position_embedding_type="sine",
        two_stage=True,
        embedding_init_target=True,
        query_dim=4,
        use_timm_backbone=False,
        backbone=None,
    )
    text = ConfigReader(values.get("text_config") or {}, f"{reader.place}, text_config")
    text.choice("model_type", ("bert",), "bert")
    bare = {**text.values, "architectures": None}
    config = Config(
        swin_pyramid.read_config(
            values.get("backbone_config") or {}, f"{reader.place}, backbone_config"
        ),
        bert.Config(**bert.read_fields(text), head=bert.read_config(bare).head),
        width=reader.integer("d_model", 256),
        grids=reader.integer("num_feature_levels", 4),
        queries=reader.integer("num_queries", 900),
        encoder=_read_stack(reader, "encoder"),
        decoder=_read_stack(reader, "decoder"),
        activation=reader.text("activation_function", "relu"),
        norm_epsilon=reader.number("layer_norm_eps", 1e-5),
        base=reader.number("positional_embedding_temperature", 20),
        shares_boxes=reader.flag("decoder_bbox_embed_share", True),
        tokens=reader.integer("max_text_len", 256),
    )
    if config.width % GROUPS:
        raise CheckpointError(f"{reader.place}: d_model must be a multiple of {GROUPS}")
    halves = config.encoder.heads // 2
    for parts, heads in (
        (config.width, config.encoder.heads),
        (config.width, config.decoder.heads),
        (config.width, halves),
        (config.encoder.mlp_width // 2, halves),
    ):
        if not heads or parts % heads:
            raise CheckpointError(f"{reader.place}: {heads} heads do not share out width {parts}")
    least = max(2, len(config.image.stages))
    if not least <= config.grids <= _MOST_GRIDS:
        raise CheckpointError(
            f"{reader.place}: num_feature_levels = {config.grids} is not supported, only "
            f"{least} to {_MOST_GRIDS}"
        )
    if config.base <= 0:
        raise CheckpointError(
            f"{reader.place}: positional_embedding_temperature = {config.base} must be positive"
        )
    return config


def _read_stack(reader: ConfigReader, name: str) -> Stack:
    return Stack(
        layers=reader.layers(f"{name}_layers", 6),
        heads=reader.integer(f"{name}_attention_heads", 8),
        mlp_width=reader.integer(f"{name}_ffn_dim", 2048),
        points=reader.integer(f"{name}_n_points", 4),
    )
