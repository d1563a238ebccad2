"""Configuration of Grounding DINO (`model_type: grounding-dino`), and the names of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Entry, Rename, projections
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


@dataclass(frozen=True, kw_only=True)
class Config:
    """Both towers, and what reads them."""

    image: swin_pyramid.Config
    text: bert.Config
    supported = {
        "position_embedding_type": "sine",
        "two_stage": True,
        "embedding_init_target": True,
        "query_dim": 4,
        "use_timm_backbone": False,
        "backbone": None,
    }
    width: int = key("d_model", 256)
    grids: int = key("num_feature_levels", 4)
    queries: int = key("num_queries", 900)
    encoder: Stack
    decoder: Stack
    activation: str = key("activation_function", "relu", "activation")
    norm_epsilon: float = key("layer_norm_eps", 1e-5)
    base: float = key("positional_embedding_temperature", 20)
    """Of the wavelengths of an image's positions."""
    shares_boxes: bool = key("decoder_bbox_embed_share", True)
    """Whether all layers of the decoder have one box head."""
    tokens: int = key("max_text_len", 256)
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
    text = ConfigReader(values.get("text_config") or {}, f"{reader.place}, text_config")
    text.choice("model_type", ("bert",), "bert")
    config = reader.read(
        Config,
        image=swin_pyramid.read_config(
            values.get("backbone_config") or {}, f"{reader.place}, backbone_config"
        ),
        text=bert.BERT.read_config({**text.values, "architectures": None}, text.place),
        encoder=_read_stack(reader, "encoder"),
        decoder=_read_stack(reader, "decoder"),
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


def rename(config: Config) -> Rename:
    """`transformers`' names → ours."""
    tower = "model.backbone.conv_encoder.model."
    texts = Rename({**bert.BERT.encoder_names(), "pooler.dense": None})
    first, last = range(2), range(3)
    table: dict[str, Entry] = {
        **swin_pyramid.rename(tower, "image.tower.", config.image),
        **texts.prefixed("model.text_backbone.", "text."),
        "model.text_projection": "text.projection",
        **{
            f"model.input_proj_vision.{grid}.{place}": f"image.{name}.{grid}"
            for grid in range(config.grids)
            for place, name in enumerate(("convolutions", "norms"))
        },
        "model.level_embed": "grid_vectors",
        **_encoder_names("model.encoder.layers.*", "encoder.*"),
        "model.enc_output": "proposal",
        "model.enc_output_norm": "proposal_norm",
        **{f"model.encoder_output_bbox_embed.layers.{i}": f"proposal_box.{2 * i}" for i in last},
        "model.query_position_embeddings.weight": "queries",
        **_decoder_names("model.decoder.layers.*", "decoder.*"),
        **{
            f"model.decoder.reference_points_head.layers.{i}": f"position_head.{2 * i}"
            for i in first
        },
        "model.decoder.layer_norm": "norm",
        **{
            f"{place}bbox_embed.{layer}.layers.{i}": f"boxes.{layer}.{2 * i}"
            for place in ("", "model.decoder.")
            for layer in range(config.decoder.layers)
            for i in last
        },
    }
    tied = {
        f"boxes.{layer}.{2 * i}.{leaf}": f"boxes.0.{2 * i}.{leaf}"
        for layer in range(1, config.decoder.layers)
        for i in last
        for leaf in ("weight", "bias")
    }
    return Rename(table, tied=tied if config.shares_boxes else None)


def _encoder_names(theirs: str, ours: str) -> dict[str, Entry]:
    fusion, text = f"{theirs}.fusion_layer", f"{theirs}.text_enhancer_layer"
    image = f"{theirs}.deformable_layer"
    return {
        f"{fusion}.layer_norm_vision": f"{ours}.fused_image_norm",
        f"{fusion}.layer_norm_text": f"{ours}.fused_text_norm",
        f"{fusion}.attn.vision_proj": f"{ours}.fusion.query",
        f"{fusion}.attn.text_proj": f"{ours}.fusion.key",
        f"{fusion}.attn.values_text_proj": f"{ours}.fusion.value",
        f"{fusion}.attn.values_vision_proj": f"{ours}.fusion.image_value",
        f"{fusion}.attn.out_vision_proj": f"{ours}.fusion.out",
        f"{fusion}.attn.out_text_proj": f"{ours}.fusion.text_out",
        f"{fusion}.vision_param": f"{ours}.image_scale",
        f"{fusion}.text_param": f"{ours}.text_scale",
        **projections(f"{text}.self_attn", f"{ours}.text_attention", _PROJECTIONS),
        f"{text}.layer_norm_before": f"{ours}.text_attention_norm",
        f"{text}.fc1": f"{ours}.text_mlp.up",
        f"{text}.fc2": f"{ours}.text_mlp.down",
        f"{text}.layer_norm_after": f"{ours}.text_mlp_norm",
        **_deformable_names(f"{image}.self_attn", f"{ours}.attention"),
        f"{image}.self_attn_layer_norm": f"{ours}.attention_norm",
        f"{image}.fc1": f"{ours}.mlp.up",
        f"{image}.fc2": f"{ours}.mlp.down",
        f"{image}.final_layer_norm": f"{ours}.mlp_norm",
    }


def _decoder_names(theirs: str, ours: str) -> dict[str, Entry]:
    return {
        **projections(f"{theirs}.self_attn", f"{ours}.attention", _PROJECTIONS),
        f"{theirs}.self_attn_layer_norm": f"{ours}.attention_norm",
        **projections(f"{theirs}.encoder_attn_text", f"{ours}.text_attention", _PROJECTIONS),
        f"{theirs}.encoder_attn_text_layer_norm": f"{ours}.text_attention_norm",
        **_deformable_names(f"{theirs}.encoder_attn", f"{ours}.image_attention"),
        f"{theirs}.encoder_attn_layer_norm": f"{ours}.image_attention_norm",
        f"{theirs}.fc1": f"{ours}.mlp.up",
        f"{theirs}.fc2": f"{ours}.mlp.down",
        f"{theirs}.final_layer_norm": f"{ours}.mlp_norm",
    }


_PROJECTIONS = "query key value out_proj"


def _deformable_names(theirs: str, ours: str) -> dict[str, Entry]:
    names = {"sampling_offsets": "offsets", "attention_weights": "weights"}
    names |= {"value_proj": "value", "output_proj": "out"}
    return {f"{theirs}.{name}": f"{ours}.{own}" for name, own in names.items()}
