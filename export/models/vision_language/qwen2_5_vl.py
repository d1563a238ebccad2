"""Qwen2.5-VL: Qwen2-VL with an image tower that attends within windows.

Report: Bai et al. 2025, "Qwen2.5-VL Technical Report", §2.1.1 (arXiv 2502.13923): in most blocks
patches attend to those of their window of 112 by 112 pixels, in a few to all; norms and MLPs are
those of the language model. Windows begin at the upper left, those at the other edges are smaller.
Checkpoints: `model_type: qwen2_5_vl` (`Qwen/Qwen2.5-VL-3B-Instruct`,
`Qwen/Qwen2.5-VL-7B-Instruct`).

Legend: B images of one size, M rows and columns of a square's patches, N patches, F windows of an
image, G patches of a window, H heads, K width of a head, E width of the tower.

Differences from `transformers`: as `qwen2_vl.py`; windows at the edges are filled up and what
fills them is hidden.

Decision D104.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from export.config.config_reader import ConfigReader
from export.config.weight_names import Names, Rename
from export.layers.attention.axial_attention import Angles, PatchAttention, PatchBlock, axial_angles
from export.layers.attention.fused import MASKED_SCORE
from export.layers.blocks import GatedMLP, RMSNorm
from export.models.vision_language import qwen2_vl
from export.models.vision_language.qwen2_vl import EPSILON, Config
from inference.errors import CheckpointError

# ---------------------------------------------------------------------------------------- config

_WHOLE = [7, 15, 23, 31]


@dataclass(frozen=True)
class TowerConfig(qwen2_vl.TowerConfig):
    """The image tower.

    Attributes:
        window: Rows, and columns, of a window's squares.
        whole: Blocks, from 0, in which patches attend to all others.
    """

    window: int
    whole: frozenset[int]


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; defaults are `transformers`' own.

    Raises:
        CheckpointError: a tower or a language model of another kind.
    """
    reader = ConfigReader(values)
    reader.refuse_heads("ForConditionalGeneration")
    vision = reader.section("vision_config")
    width = vision.integer("hidden_size", 3584)
    mlp_width = vision.integer("intermediate_size", 3420)
    blocks = qwen2_vl.read_blocks(vision, width, mlp_width, "silu")
    tower = qwen2_vl.read_tower(vision, blocks)
    text = qwen2_vl.read_text(reader)
    vision.refuse_unless(out_hidden_size=text.width)
    window = vision.integer("window_size", 112)
    if window < tower.grid.edge:
        raise CheckpointError(
            f"{vision.place}: window_size = {window} is smaller than one square of patches, "
            f"{tower.grid.edge}"
        )
    whole = vision.given.get("fullatt_block_indexes", _WHOLE)
    if not isinstance(whole, list) or not all(isinstance(block, int) for block in whole):
        raise CheckpointError(
            f"{vision.place}: fullatt_block_indexes must be a list of blocks, not {whole!r}"
        )
    windowed = TowerConfig(
        **vars(tower), window=window // tower.merge // tower.patch, whole=frozenset(whole)
    )
    return Config(windowed, text, **qwen2_vl.read_tokens(reader, text))


# --------------------------------------------------------------------------------------- network


@dataclass(frozen=True)
class Windows:
    """Where the patches of an image lie in windows, all of one size.

    Attributes:
        places: (F · G,) the patch at each place of a window; any one where there is none.
        returns: (N,) the place of each patch.
        is_filled: (F, G) bool: whether there is a patch.
    """

    places: Tensor
    returns: Tensor
    is_filled: Tensor

    @classmethod
    def of(cls, rows: int, columns: int, side: int, patches: int) -> Windows:
        """Of an image of rows and columns of squares.

        Args:
            side: Rows and columns of a window's squares.
            patches: Of a square, M².
        """
        # ONNX rounds quotients towards zero: of positive numbers only
        down, across = (rows + side - 1) // side, (columns + side - 1) // side
        row = torch.arange(down * side).reshape(down, 1, side, 1)
        column = torch.arange(across * side).reshape(1, across, 1, side)
        is_filled = (row < rows) & (column < columns)  # (down, across, side, side)
        square = torch.where(is_filled, row * columns + column, 0).flatten()
        number = torch.arange(down * across * side**2).reshape(down, across, side, side)
        inside = number.transpose(1, 2).reshape(down * side, across * side)[:rows, :columns]
        each = torch.arange(patches)
        return cls(
            (square[:, None] * patches + each).flatten(),
            (inside.reshape(-1, 1) * patches + each).flatten(),
            is_filled.reshape(-1, side**2, 1).expand(-1, -1, patches).flatten(1),
        )

    def enter(self, x: Tensor) -> Tensor:
        """(B, N, …) → the windows' patches, (B · F, G, …)."""
        return x[:, self.places].unflatten(1, self.is_filled.shape).flatten(0, 1)

    def leave(self, x: Tensor) -> Tensor:
        """(B · F, G, E) → (B, N, E): what `enter` took apart."""
        return x.unflatten(0, (-1, self.is_filled.shape[0])).flatten(1, 2)[:, self.returns]

    def bias(self, images: int) -> Tensor:
        """(B · F, 1, G, G) of the scores, which hides what fills a window up."""
        count, size = self.is_filled.shape
        hidden = torch.where(self.is_filled, 0.0, MASKED_SCORE)[None, :, None, None]
        return hidden.expand(images, count, 1, size, size).flatten(0, 1)


class ImageEncoder(qwen2_vl.ImageEncoder):
    """Qwen2-VL's with windows."""

    config: TowerConfig

    def make_norm(self) -> nn.Module:
        """A norm of the tower."""
        return RMSNorm(self.config.blocks.width, EPSILON)

    def make_block(self) -> PatchBlock:
        """A block of the tower."""
        blocks = self.config.blocks
        mlp = GatedMLP(blocks.width, blocks.mlp_width, blocks.activation, bias=True)
        return PatchBlock(PatchAttention(blocks.heads), mlp, self.make_norm)

    def run_blocks(self, x: Tensor, rows: int, columns: int) -> Tensor:
        """(B, N, E) → (B, N, E), of an image of rows and columns of squares."""
        config = self.config
        angles = axial_angles(rows, columns, config.merge, config.blocks.heads.width, config.base)
        windows = Windows.of(rows, columns, config.window, config.merge**2)
        bias, within = windows.bias(x.shape[0]), _within(windows, angles, x.shape[0])
        for number, block in enumerate(self.blocks):
            assert isinstance(block, PatchBlock)
            if number in config.whole:
                x = block(x, angles)
            else:
                inside = windows.enter(block.attention_norm(x))
                x = block.finish(x + windows.leave(block.attention(inside, within, bias)))
        return x


def _within(windows: Windows, angles: Angles, images: int) -> Angles:
    """Angles (1, 1, N, K / 2) of the windows' patches, (B · F, 1, G, K / 2)."""
    cosine, sine = (windows.enter(each[:, 0].expand(images, -1, -1))[:, None] for each in angles)
    return cosine, sine


class Qwen25VL(qwen2_vl.Qwen2VL):
    """Image encoder and language model."""

    encoder_type = ImageEncoder


# ----------------------------------------------------------------------------------------- names

_BLOCK: Names = {
    "norm1": "attention_norm",
    "norm2": "mlp_norm",
    "attn.proj": "attention.out",
    "mlp.gate_proj": "mlp.gate",
    "mlp.up_proj": "mlp.up",
    "mlp.down_proj": "mlp.down",
}


def rename(config: Config) -> Rename:
    """`transformers`' names → ours."""
    return qwen2_vl.rename(config, _BLOCK)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = replace(
    qwen2_vl.ARCHITECTURE,
    name="qwen2_5_vl",
    read_config=read_config,
    build=Qwen25VL,
    rename=rename,
)
