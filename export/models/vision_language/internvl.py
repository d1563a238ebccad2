"""InternVL: a language model that reads the tiles of images as few tokens.

Papers: Chen et al. 2024, "How Far Are We to GPT-4V?" (InternVL 1.5), §3 (arXiv 2404.16821): an
image is divided into the grid of tiles whose aspect ratio is closest to its own, and comes once
more as a whole; s x s neighbouring patches are concatenated (pixel shuffle), and a norm and two
linear layers project them. Zhu et al. 2025, "InternVL3" (arXiv 2504.10479).
Checkpoints: `model_type: internvl` (`OpenGVLab/InternVL3-1B-hf`, `-2B-hf`, …, `-78B-hf`,
`OpenGVLab/InternVL3_5-*-HF`), whose language model is one of `LANGUAGE_MODELS` (`llava.py`).

Legend: B tiles, N patches, n patches in a row, s 1 / `downsample_ratio`, L = N / s² tokens of a
tile, E width of the image tower, D width.

Differences from `transformers`: a tile's vectors are computed once, by `admit`; pixels come as
uint8. Videos are not read.

Decision D104.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from export.architecture import Architecture, LimitedByText
from export.checkpoint.checkpoint import Checkpoint
from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Names, Rename, projections
from export.decoder_graphs.language_model import (
    DecoderConfig,
    ImageLanguageModel,
    image_language_model,
    language_names,
)
from export.layers.activation import activation
from export.layers.attention.attention import SelfAttention
from export.layers.attention.heads import Heads
from export.layers.blocks import RMSNorm
from export.layers.images.vision import check_recipe
from export.models.decoders import llama
from export.models.vision import vit
from export.models.vision_language.llava import read_language
from export.tokenizer.prompt_images import IMAGE_TOKEN, check_tokens
from export.tokenizer.tokenizer import special_text
from inference.bundle.inputs import ImageSpec
from inference.errors import CheckpointError

# ---------------------------------------------------------------------------------------- config

_VISION = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-6,
    "image_size": 448,
    "patch_size": 14,
}


@dataclass(frozen=True, kw_only=True)
class TowerConfig(vit.Config):
    """The image tower: a ViT with layer scale.

    Attributes:
        norm_kind: Of the blocks.
        has_wide_norms: Whether queries and keys are normalised, all heads together.
        has_no_last_norm: Whether the last block's output is read as it is.
    """

    supported = vit.Config.supported | {"use_absolute_position_embeddings": True}
    norm_kind: str = key("norm_type", "layer_norm", "choice", supported=("layer_norm", "rms_norm"))
    has_wide_norms: bool = key("use_qk_norm", False)
    has_no_last_norm: bool = key("use_mean_pooling", True)


@dataclass(frozen=True, kw_only=True)
class Config(LimitedByText):
    """Image tower, pixel shuffle, projection and language model.

    Attributes:
        scale: s.
        activation: Between both layers of the projection.
    """

    tower: TowerConfig
    scale: int
    activation: str
    language: Architecture
    text: DecoderConfig
    image_token: int

    @property
    def tokens(self) -> int:
        """L."""
        return (self.tower.grid[0] // self.scale) ** 2


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; defaults are `transformers`' own.

    Raises:
        CheckpointError: another language model; patches that s does not divide.
    """
    reader = ConfigReader(values)
    reader.refuse_heads("ForConditionalGeneration")
    reader.refuse_unless(vision_feature_layer=-1, vision_feature_select_strategy="default")
    vision = reader.section("vision_config", _VISION)
    heads = vision.read(Heads, bias=vision.flag("attention_bias", False))
    tower, ratio = vision.read(TowerConfig, heads=heads), reader.number("downsample_ratio", 0.5)
    rows, columns = tower.grid
    scale = round(1 / ratio) if ratio > 0 else 0
    if not scale or ratio * scale != 1 or rows != columns or rows % scale:
        raise CheckpointError(
            f"{reader.place}: downsample_ratio = {ratio:g} is not supported for {rows} x {columns} "
            "patches, only one over a number that divides a square's side"
        )
    is_tied = reader.flag("tie_word_embeddings", True)
    language, text = read_language(reader, is_tied=is_tied, default="qwen2")
    return Config(
        tower=tower,
        scale=scale,
        activation=reader.activation("projector_hidden_act", "gelu"),
        language=language,
        text=text,
        image_token=reader.token(IMAGE_TOKEN, 151667, text.vocabulary_size),
    )


# --------------------------------------------------------------------------------------- network


class WideNormAttention(SelfAttention):
    """Every patch attends to every other; queries and keys are normalised before heads divide."""

    def __init__(self, heads: Heads) -> None:
        super().__init__(heads)
        self.query_norm, self.key_norm = RMSNorm(heads.model_width), RMSNorm(heads.model_width)

    def forward(
        self, x: Tensor, lengths: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """(B, T, D) → (B, T, D)."""
        assert self.query_norm is not None
        assert self.key_norm is not None
        query, key = self.query_norm(self.query(x)), self.key_norm(self.key(x))
        return self.out(self.mix(query, key, self.value(x), lengths, bias))


class Tower(vit.ViT):
    """Pixels → one vector a patch, and one for the class token in front."""

    config: TowerConfig

    def __init__(self, config: TowerConfig) -> None:
        super().__init__(config)
        if config.has_no_last_norm:
            self.norm = nn.Identity()

    def make_blocks(self) -> nn.ModuleList:
        """The blocks with layer scale."""
        config = self.config
        blocks = [vit.ScaledBlock(config) for _ in range(config.layers)]
        for block in blocks:
            if config.norm_kind == "rms_norm":
                norm = partial(RMSNorm, config.width, config.norm_epsilon)
                block.attention_norm, block.mlp_norm = norm(), norm()
            if config.has_wide_norms:
                block.attention = WideNormAttention(config.heads)
        return nn.ModuleList(blocks)

    def prepare(self, image: ImageSpec) -> None:
        """Takes prepared uint8 pixels from now on, not a normalised image.

        Raises:
            CheckpointError: the recipe gives another size.
        """
        check_recipe(image, self.config.image)
        super().prepare(image)


class ImageEncoder(nn.Module):
    """The tower, pixel shuffle and projection."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.side, self.scale = config.tower.grid[0], config.scale
        read, width = config.tower.width * config.scale**2, config.text.width
        self.vit = Tower(config.tower)
        self.norm = nn.LayerNorm(read)
        self.first = nn.Linear(read, width)
        self.activation = activation(config.activation)
        self.second = nn.Linear(width, width)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → (B, L, D)."""
        s, rows = self.scale, self.side // self.scale
        x = self.vit(pixels)[:, 1:].unflatten(1, (rows, s, rows, s)).transpose(2, 3)
        squares = self.norm(x.flatten(3).flatten(1, 2))  # (B, L, s²·E)
        return self.second(self.activation(self.first(squares)))


class InternVL(ImageLanguageModel):
    """Image encoder and language model."""

    def __init__(self, config: Config) -> None:
        super().__init__(config, ImageEncoder(config))

    def tile_texts(self, checkpoint: Checkpoint, place: str) -> dict[str, str]:
        """What the checkpoint's processor writes for an image, as fields of `TileTexts`.

        Raises:
            CheckpointError: see `check_tokens`.
        """
        check_tokens(checkpoint, self.config.tokens, "image_seq_length", 256)
        begin = special_text(checkpoint, "start_image_token") or "<img>"
        end = special_text(checkpoint, "end_image_token") or "</img>"
        single = f"{begin}{place}{end}"
        return {"first": begin, "tile": place, "whole": f"{place}{end}", "single": single}


# ----------------------------------------------------------------------------------------- names

_THEIRS, _OURS = "encoder.layer.*", "blocks.*"
_TOWER: Names = vit.VIT_NAMES | {
    **projections(
        f"{_THEIRS}.attention", f"{_OURS}.attention", "q_proj k_proj v_proj projection_layer"
    ),
    f"{_THEIRS}.attention.q_norm": f"{_OURS}.attention.query_norm",
    f"{_THEIRS}.attention.k_norm": f"{_OURS}.attention.key_norm",
    f"{_THEIRS}.lambda_1": f"{_OURS}.attention_scale",
    f"{_THEIRS}.lambda_2": f"{_OURS}.mlp.scale",
    f"{_THEIRS}.mlp.fc1": f"{_OURS}.mlp.layer.up",
    f"{_THEIRS}.mlp.fc2": f"{_OURS}.mlp.layer.down",
}
_PROJECTOR = {"layer_norm": "norm", "linear_1": "first", "linear_2": "second"}


def rename(config: Config) -> Rename:
    """`transformers`' names → ours: those of published files, and of newer versions."""
    table: Names = {}
    for prefix in ("", "model."):
        table |= vit.rename(f"{prefix}vision_tower.", "encoder.vit.", _TOWER)
        for name, ours in _PROJECTOR.items():
            table[f"{prefix}multi_modal_projector.{name}"] = f"encoder.{ours}"
    return Rename(table | language_names(config.language.rename(config.text).table))


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = image_language_model(
    "internvl",
    read_config,
    InternVL,
    rename,
    image_size=lambda config: config.tower.image,
    ends=llama.ENDS,
)
