"""LLaVA-NeXT: LLaVA that reads images at one of several resolutions, tile by tile.

Source: Liu et al. 2024, "LLaVA-NeXT: Improved reasoning, OCR, and world knowledge"; the tiles are
those of "Improved Baselines with Visual Instruction Tuning", §4.2 (arXiv 2310.03744): the vectors
of an image's tiles are laid out as one grid, those of padding are left out, and a learned vector
ends each row. In front of them are the vectors of the whole image as one tile.
Checkpoints: `model_type: llava_next` (`llava-hf/llava-v1.6-mistral-7b-hf`,
`llava-hf/llama3-llava-next-8b-hf`), with the towers and language models of `llava_config.py`.

Legend: B images of one size, n rows and columns of a tile's vectors, E pixels of a tile's side,
L vectors of an image, D width.

Differences from `transformers`: an image comes as a canvas (`TileGrid`), whose size says what is
left out; otherwise as `llava.py`.

Decision D104.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from export.architecture import Graphs
from export.checkpoint.image_recipe import read_resolutions
from export.config.config_reader import ConfigReader
from export.config.weight_names import Rename
from export.decoder_graphs.language_model import image_language_graphs
from export.layers.images.vision import check_recipe, patch_grid
from export.models.vision_language import llava
from inference.bundle.inputs import ImageSpec, PromptImages, Resolutions, TileGrid
from inference.errors import CheckpointError

# ---------------------------------------------------------------------------------------- config

_RESOLUTIONS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]


@dataclass(frozen=True)
class Config(llava.Config):
    """LLaVA's, with the resolutions of images.

    Attributes:
        resolutions: (height, width) of each.
        grid: How a canvas is read.
    """

    resolutions: tuple[tuple[int, int], ...]
    grid: TileGrid

    @property
    def canvas(self) -> tuple[int, int]:
        """(height, width) of the smallest canvas."""
        return 2 * self.grid.edge, self.grid.edge


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; defaults are `transformers`' own.

    Raises:
        CheckpointError: see `llava_config.read_halves`; tiles that are no squares of patches.
    """
    reader = ConfigReader(values)
    reader.refuse_heads("ForConditionalGeneration")
    is_tied = reader.flag("tie_word_embeddings", False)  # not that of `text_config`
    read = llava.read_halves(reader, is_tied=is_tied)
    image, (rows, columns) = read.image, patch_grid(read.image.image, read.image.patch)
    edge = image.image[0]
    if image.image != (edge, edge) or rows != columns or image.tokens != rows * columns:
        raise CheckpointError(
            f"config.json: tiles of {image.image} with {image.tokens} vectors are not supported, "
            "only squares with one vector for each patch"
        )
    given = values.get("image_grid_pinpoints")
    resolutions = read_resolutions(_RESOLUTIONS if given is None else given, edge, "config.json")
    fields = {name: getattr(read, name) for name in ("image", "language", "text", "image_token")}
    return Config(**fields, resolutions=resolutions, grid=TileGrid(edge=edge, side=rows))


# --------------------------------------------------------------------------------------- network


class CanvasEncoder(llava.ImageEncoder):
    """The vectors of a canvas: the whole image's, then those of its tiles, row by row."""

    def __init__(self, config: Config) -> None:
        super().__init__(config.image, config.text.width)
        self.grid = config.grid
        self.newline = nn.Parameter(torch.zeros(config.text.width))

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8, canvases of one size → (B, L, D)."""
        edge, n = self.grid.edge, self.grid.side
        count, height, width = pixels.shape[0], pixels.shape[1], pixels.shape[2]
        rows, top = height // edge - 1, height % edge
        columns, left = width // edge, width % edge
        tiles = pixels[:, edge : height - top, : width - left]
        tiles = tiles.reshape(count, rows, edge, columns, edge, 3).transpose(2, 3)
        tiles = tiles.reshape(-1, edge, edge, 3)
        vectors = super().forward(torch.cat([pixels[:, :edge, :edge], tiles]))  # (…, n², D)
        whole, parts = vectors[:count], vectors[count:]
        parts = parts.reshape(count, rows, columns, n, n, -1).transpose(2, 3)
        parts = parts.reshape(count, rows * n, columns * n, -1)
        parts = parts[:, top : rows * n - top, left : columns * n - left]
        ends = self.newline.expand(count, parts.shape[1], 1, -1)
        return torch.cat([whole, torch.cat([parts, ends], dim=2).flatten(1, 2)], dim=1)


class LlavaNext(llava.Llava):
    """Encoder of canvases and language model."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.encoder = CanvasEncoder(config)
        self.resolutions, self.canvas, self.grid = config.resolutions, config.canvas, config.grid

    @property
    def images(self) -> PromptImages:
        """How its prompts hold images."""
        tokens, token = self.grid.tokens(*self.canvas), self.config.image_token
        return PromptImages(positions=tokens, token_id=token, tokens=tokens, grid=self.grid)


# ----------------------------------------------------------------------------------------- names


def rename(config: Config) -> Rename:
    """LLaVA's, and the vector that ends rows."""
    ends = {f"{prefix}image_newline": "encoder.newline" for prefix in ("", "model.")}
    return Rename({**llava.rename(config).table, **ends})


# ---------------------------------------------------------------------------------------- graphs


def graphs(model: LlavaNext, image: ImageSpec | None) -> Graphs:
    """`admit` (B, I, height, width dynamic) and `step` (R, T, P, B, S dynamic; in place).

    Raises:
        CheckpointError: the recipe has other tiles or resolutions than the configuration.
    """
    assert image is not None
    check_recipe(image, model.canvas)
    tiles = image.tiles
    if isinstance(tiles, Resolutions) and tiles.sizes != model.resolutions:
        raise CheckpointError(
            f"the image recipe has the resolutions {tiles.sizes}, config.json {model.resolutions}"
        )
    edge = model.grid.edge
    tile = image.model_copy(update={"size": (edge, edge), "tiles": None})
    return image_language_graphs(model, image, tile=tile)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = replace(
    llava.ARCHITECTURE,
    name="llava_next",
    read_config=read_config,
    build=LlavaNext,
    rename=rename,
    graphs=graphs,
    image_size=lambda config: config.canvas,
)
