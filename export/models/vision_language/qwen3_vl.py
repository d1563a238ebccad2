"""Qwen3-VL: features of several of the tower's blocks, added to the first of the decoder's.

Report: Bai et al. 2025, "Qwen3-VL Technical Report", §2 (arXiv 2511.21631): Qwen2-VL whose language
model is Qwen3; the pairs of its heads rotate by time, height and width in turn. The tower has
learned positions, interpolated to an image's patches, beside its rotations. DeepStack (Meng et al.
2024, arXiv 2406.04334): what some of its blocks return is projected too, and added to the outputs
of the decoder's first blocks, one to each, where the image's tokens stand.
Checkpoints: `model_type: qwen3_vl` (`Qwen/Qwen3-VL-2B-Instruct`, `-4B-`, `-8B-`, `-32B-`); those of
experts (`qwen3_vl_moe`) are another type.

Legend: B images of one size, M rows and columns of a square's patches, N patches, L vectors of an
image (N / M²), n rows and columns of the table of positions, k levels, E width of the tower, D
width.

Differences from `transformers`: those of `qwen2_vl.py`. The k - 1 further vectors of a token lie
behind its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isqrt
from typing import Any

import torch
from torch import Tensor, nn

from export.config.config_reader import ConfigReader
from export.config.weight_names import Rename
from export.layers.attention.axial_attention import axial_angles
from export.models.decoders import llama
from export.models.vision_language import qwen2_vl
from export.models.vision_language.qwen2_vl import (
    EPSILON,
    QWEN2_VL,
    Config,
    ImageEncoder,
    Qwen2VL,
    SquareEmbedding,
    TowerConfig,
    open_text,
    read_blocks,
    read_tokens,
    read_tower,
)
from inference.errors import CheckpointError

_TEXT: Mapping[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": 128,
    "max_position_embeddings": 128000,
    "rope_theta": 500000.0,
}
_VISION = {"depth": 27, "hidden_act": "gelu_pytorch_tanh", "patch_size": 16}
"""What `transformers` takes where the file says nothing."""


@dataclass(frozen=True)
class LevelConfig(TowerConfig):
    """The image tower.

    Attributes:
        side: n.
    """

    side: int


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; defaults are `transformers`' own.

    Raises:
        CheckpointError: a tower or a language model of another kind.
    """
    reader = ConfigReader(values)
    reader.refuse_heads("ForConditionalGeneration")
    vision = reader.section("vision_config", _VISION)
    width = vision.integer("hidden_size", 1152)
    mlp_width = vision.integer("intermediate_size", 4304)
    tower = read_tower(vision, read_blocks(vision, width, mlp_width, "gelu_pytorch_tanh"))
    is_tied = reader.flag("tie_word_embeddings", False)  # not that of `text_config`
    section = reader.section("text_config")
    opened, heads = open_text(section, _TEXT, (24, 20, 20), is_tied=is_tied)
    opened.section("rope_parameters").refuse_unless(mrope_interleaved=True)
    assert heads.rotary is not None
    heads = replace(heads, rotary=replace(heads.rotary, alternates=True))
    text = llama.read_shape(opened, heads, has_head_norms=True)
    vision.refuse_unless(out_hidden_size=text.width)
    places = vision.integer("num_position_embeddings", 2304)
    if isqrt(places) ** 2 != places:
        raise CheckpointError(
            f"{vision.place}: num_position_embeddings = {places} is not a square's"
        )
    levels = _read_levels(vision, tower.blocks.layers, len(text.layers))
    fields = {**vars(tower), "side": isqrt(places), "levels": levels}
    return Config(LevelConfig(**fields), text, **read_tokens(reader, text))


def _read_levels(vision: ConfigReader, blocks: int, layers: int) -> tuple[int, ...]:
    """The blocks of `deepstack_visual_indexes`.

    Raises:
        CheckpointError: no growing list of the tower's blocks, or one that is longer than the
            decoder.
    """
    levels = vision.given.get("deepstack_visual_indexes", [8, 16, 24])
    is_list = isinstance(levels, list) and all(type(level) is int for level in levels)
    if not is_list or levels != sorted(set(levels) & set(range(blocks))) or len(levels) > layers:
        raise CheckpointError(
            f"{vision.place}: deepstack_visual_indexes must be a growing list of at most {layers} "
            f"of the {blocks} blocks, not {levels!r}"
        )
    return tuple(levels)


# --------------------------------------------------------------------------------------- network


class LevelMerger(nn.Module):
    """Squares of patches, a norm of whole squares, and a projection."""

    def __init__(self, config: LevelConfig, width: int) -> None:
        super().__init__()
        self.patches = config.merge**2
        squared = config.blocks.width * self.patches
        self.norm = nn.LayerNorm(squared, eps=EPSILON)
        self.first = nn.Linear(squared, squared)
        self.activation = nn.GELU()
        self.second = nn.Linear(squared, width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, E) → (B, L, D)."""
        squares = self.norm(x.unflatten(1, (-1, self.patches)).flatten(2))
        return self.second(self.activation(self.first(squares)))


class LevelEncoder(ImageEncoder):
    """Qwen2-VL's with learned positions and several levels."""

    config: LevelConfig

    def __init__(self, config: LevelConfig, width: int) -> None:
        super().__init__(config, width)
        self.patches = SquareEmbedding(config, has_bias=True)
        self.positions = nn.Parameter(torch.zeros(config.side**2, config.blocks.width))
        self.mergers = nn.ModuleList(LevelMerger(config, width) for _ in config.levels)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8, of whole squares → (B, L, k · D)."""
        config = self.config
        rows, columns = (size // config.grid.edge for size in pixels.shape[1:3])
        x = self.patches(self.pixel_norm(pixels)) + self.place(rows, columns)
        angles = axial_angles(rows, columns, config.merge, config.blocks.heads.width, config.base)
        levels = iter(self.mergers)
        read = []
        for number, block in enumerate(self.blocks):
            x = block(x, angles)
            if number in config.levels:
                read.append(next(levels)(x))
        return torch.cat([self.merge(x), *read], dim=-1)

    def place(self, rows: int, columns: int) -> Tensor:
        """(N, E): the table, linear between its places, of rows and columns of squares."""
        merge, side = self.config.merge, self.config.side
        table = self.positions.unflatten(0, (side, side)).flatten(1)  # (n, n · E)
        by_row = between(rows * merge, side) @ table
        by_row = by_row.unflatten(1, (side, -1))  # (rows · M, n, E)
        both = between(columns * merge, side) @ by_row  # (rows · M, columns · M, E)
        squares = both.reshape(rows, merge, columns, merge, -1).transpose(1, 2)
        return squares.flatten(0, 3)


def between(count: int, side: int) -> Tensor:
    """(count, n): weights of n places at count points, from the first place to the last."""
    number = torch.arange(count).float()[:, None]
    place = number * (side - 1) / number.max().clamp(min=1)
    return (1 - (place - torch.arange(side)).abs()).clamp(min=0)


class Qwen3VL(Qwen2VL):
    """Image encoder and language model."""

    encoder_type = LevelEncoder


# ----------------------------------------------------------------------------------------- names

_MLP = {"linear_fc1": "up", "linear_fc2": "down"}
_PARTS = {"norm": "norm", "linear_fc1": "first", "linear_fc2": "second"}


def rename(config: Config) -> Rename:
    """`transformers`' names → ours."""
    table = qwen2_vl.rename(config, _MLP, llama.QWEN3).table
    table["model.visual.pos_embed.weight"] = "encoder.positions"
    for name, ours in _PARTS.items():
        table[f"model.visual.merger.{name}"] = f"encoder.{ours}"
        table[f"model.visual.deepstack_merger_list.*.{name}"] = f"encoder.mergers.*.{ours}"
    return Rename(table)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = replace(
    QWEN2_VL, name="qwen3_vl", read_config=read_config, build=Qwen3VL, rename=rename
)
