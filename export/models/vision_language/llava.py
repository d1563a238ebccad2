"""LLaVA and LLaVA-NeXT: a language model that reads the patches of images as tokens.

Papers: Liu et al. 2023, "Visual Instruction Tuning", §4.1 (arXiv 2304.08485); Liu et al. 2023,
"Improved Baselines with Visual Instruction Tuning", §3 (arXiv 2310.03744): two linear layers
project the patches of an image tower to the language model's width. Liu et al. 2024, "LLaVA-NeXT:
Improved reasoning, OCR, and world knowledge", with the tiles of "Improved Baselines", §4.2: images
come at one of several resolutions, the vectors of an image's tiles are laid out as one grid, those
of padding are left out, and a learned vector ends each row; in front of them are the vectors of the
whole image as one tile.
Checkpoints: `model_type: llava` (`llava-hf/llava-1.5-7b-hf`, `llava-hf/bakLlava-v1-hf`,
`llava-hf/llava-interleave-qwen-0.5b-hf`) and `llava_next` (`llava-hf/llava-v1.6-mistral-7b-hf`,
`llava-hf/llama3-llava-next-8b-hf`) with an image tower of `TOWERS` and a language model of
`LANGUAGE_MODELS`.

Legend: B images (canvases: of one size), N patches, L vectors of an image, n rows and columns of a
tile's vectors, E width of the image tower, D width.

Differences from `transformers`: an image's vectors are computed once, by `admit`; blocks of the
image tower whose output is not read are left out; pixels come as uint8. With tiles, an image comes
as a canvas (`TileGrid`), whose size says what is left out.

Decision D104.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from export.architecture import Architecture, Graphs, LimitedByText
from export.checkpoint.image_recipe import read_resolutions
from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Entry, Rename
from export.decoder_graphs.language_model import (
    DecoderConfig,
    ImageLanguageModel,
    image_language_graphs,
    image_language_model,
    language_names,
)
from export.layers.activation import activation
from export.layers.blocks import BlockConfig
from export.layers.images.vision import check_recipe, patch_count, patch_grid
from export.models.decoders import llama
from export.models.dual_encoders import clip, siglip
from export.tokenizer.prompt_images import IMAGE_TOKEN
from inference.bundle.inputs import ImageSpec, PromptImages, Resolutions, TileGrid
from inference.errors import CheckpointError

LANGUAGE_MODELS: Mapping[str, Architecture] = {
    "llama": llama.LLAMA,
    "mistral": llama.LLAMA,
    "qwen2": llama.QWEN2,
    "qwen3": llama.QWEN3,
}
"""`model_type` of `text_config` → the decoder."""
_SEVEN_BILLION = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "llama": {**_SEVEN_BILLION, "vocab_size": 32000, "intermediate_size": 11008},
    "mistral": {**_SEVEN_BILLION, "vocab_size": 32000, "intermediate_size": 14336},
    "qwen2": {**_SEVEN_BILLION, "vocab_size": 151936, "intermediate_size": 22016},
    "qwen3": {**_SEVEN_BILLION, "vocab_size": 151936, "intermediate_size": 22016},
}
"""What `transformers` takes where `text_config` says nothing, as in the published files."""


VisionTransformer = clip.VisionTransformer | siglip.VisionTransformer


@dataclass(frozen=True)
class Tower:
    """One kind of image tower.

    Attributes:
        read: Its section of `config.json`.
        build: Blocks, image and patch → the tower.
        names: Prefixes of its names and of ours → the table.
        leading: Tokens in front of the patches.
        patch: Default of `patch_size`.
    """

    defaults: Mapping[str, Any]
    build: Callable[[BlockConfig, tuple[int, int], tuple[int, int]], VisionTransformer]
    names: Callable[[str, str], dict[str, Entry]]
    leading: int


TOWERS: Mapping[str, Tower] = {
    "clip_vision_model": Tower(
        clip.IMAGE_DEFAULTS | {"patch_size": 32},
        clip.VisionTransformer,
        clip.vision_names,
        leading=1,
    ),
    "siglip_vision_model": Tower(
        siglip.DEFAULTS | {"patch_size": 16},
        siglip.VisionTransformer,
        lambda theirs, ours: {
            **siglip.vision_names(theirs, ours),
            **{f"{theirs}.head.{name}": None for name in siglip.HEAD},
        },
        leading=0,
    ),
}
"""`model_type` of `vision_config` → the tower."""


@dataclass(frozen=True, kw_only=True)
class ImageConfig:
    """The image tower, its projection, and what is read of it.

    Attributes:
        layers: Whose outputs are read, side by side; 0 is the first block's input.
        is_first_skipped: Whether the first position is left out: CLIP's class token.
        activation: Between both layers of the projection.
    """

    kind: Tower
    tower: BlockConfig
    image: tuple[int, int] = key("image_size", 224)
    patch: tuple[int, int] = key("patch_size")
    layers: tuple[int, ...]
    is_first_skipped: bool
    activation: str
    has_bias: bool

    @property
    def tokens(self) -> int:
        """L."""
        return patch_count(self.image, self.patch) + self.kind.leading - self.is_first_skipped


@dataclass(frozen=True)
class Config(LimitedByText):
    """Both halves."""

    image: ImageConfig
    language: Architecture
    text: DecoderConfig
    image_token: int

    @property
    def tokens(self) -> int:
        """L."""
        return self.image.tokens


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; defaults are `transformers`' own.

    Raises:
        CheckpointError: another image tower or language model; a token or a layer that they lack.
    """
    reader = ConfigReader(values)
    reader.refuse_heads("ForConditionalGeneration")
    places = (reader, reader.section("text_config"))
    is_tied = any(each.flag("tie_word_embeddings", False) for each in places)
    return read_halves(reader, is_tied=is_tied)


def read_halves(reader: ConfigReader, *, is_tied: bool) -> Config:
    """Image tower and language model.

    Args:
        is_tied: As of `read_language`.

    Raises:
        CheckpointError: see `read_config`.
    """
    language, text = read_language(reader, is_tied=is_tied)
    name = IMAGE_TOKEN if IMAGE_TOKEN in reader.given else "image_token_index"
    token = reader.token(name, 32000, text.vocabulary_size)
    return Config(_read_image(reader), language, text, token)


def read_language(
    reader: ConfigReader, *, is_tied: bool, default: str = "llama"
) -> tuple[Architecture, DecoderConfig]:
    """The decoder of `text_config`, and its configuration.

    Args:
        is_tied: Whether logits are products with the embedding table; `transformers` reads the
            field at the top, and only for some families the section's.
        default: Of `model_type`.

    Raises:
        CheckpointError: another language model.
    """
    section = reader.section("text_config")
    kind = section.choice("model_type", LANGUAGE_MODELS, default)
    values = {**_DEFAULTS[kind], **section.given, "tie_word_embeddings": is_tied}
    values["model_type"] = kind
    return LANGUAGE_MODELS[kind], LANGUAGE_MODELS[kind].read_config(values)


def _read_image(reader: ConfigReader) -> ImageConfig:
    vision = reader.section("vision_config")
    kind = TOWERS[vision.choice("model_type", TOWERS, "clip_vision_model")]
    vision.defaults = kind.defaults
    vision.refuse_unless(num_channels=3)
    tower = vision.read(BlockConfig)
    given = reader.given.get("vision_feature_layer", -2)
    wanted = given if isinstance(given, list) else [given]
    numbers = [layer for layer in wanted if type(layer) is int]
    layers = tuple(layer + (layer < 0) * (tower.layers + 1) for layer in numbers)
    is_inside = all(0 <= layer <= tower.layers for layer in layers)
    if not layers or not is_inside or len(layers) < len(wanted):
        raise CheckpointError(
            f"{reader.place}: vision_feature_layer = {given!r} is outside the {tower.layers} blocks"
        )
    strategy = reader.choice("vision_feature_select_strategy", ("default", "full"), "default")
    return vision.read(
        ImageConfig,
        kind=kind,
        tower=tower,
        layers=layers,
        is_first_skipped=strategy == "default",
        activation=reader.activation("projector_hidden_act", "gelu"),
        has_bias=reader.flag("multimodal_projector_bias", True),
    )


# --------------------------------------------------------------------------------------- network


class ImageEncoder(nn.Module):
    """Patches of an image tower, projected."""

    def __init__(self, config: ImageConfig, width: int) -> None:
        super().__init__()
        self.layers, self.skipped = config.layers, int(config.is_first_skipped)
        self.vit = config.kind.build(config.tower, config.image, config.patch)
        del self.vit.norm  # of the pooled vector, which is not used
        self.vit.blocks = self.vit.blocks[: max(config.layers)]
        read, bias = config.tower.width * len(config.layers), config.has_bias
        self.first = nn.Linear(read, width, bias=bias)
        self.activation = activation(config.activation)
        self.second = nn.Linear(width, width, bias=bias)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → (B, L, D)."""
        outputs = self.vit.layer_outputs(pixels)
        read = torch.cat([outputs[layer] for layer in self.layers], dim=-1)
        return self.second(self.activation(self.first(read[:, self.skipped :])))


class Llava(ImageLanguageModel):
    """Image encoder and language model."""

    def __init__(self, config: Config) -> None:
        decoder = config.language.build(config.text).get_submodule("decoder")
        super().__init__(config, ImageEncoder(config.image, config.text.width), decoder)


# ----------------------------------------------------------------------------------------- names


def rename(config: Config) -> Rename:
    """`transformers`' names → ours: those of published files, and of newer versions."""
    table: dict[str, Entry] = {}
    tower = config.image.kind.names("", "encoder.vit") | {".post_layernorm": None}
    unread = range(max(config.image.layers), config.image.tower.layers)
    for prefix in ("", "model."):
        for place in ("vision_tower.vision_model", "vision_tower"):
            table |= {f"{prefix}{place}{name}": entry for name, entry in tower.items()}
            blocks = clip.block_names("", "")
            table |= {
                f"{prefix}{place}{name.replace('*', str(number))}": None
                for name in blocks
                for number in unread
            }
        table[f"{prefix}multi_modal_projector.linear_1"] = "encoder.first"
        table[f"{prefix}multi_modal_projector.linear_2"] = "encoder.second"
    return Rename(table | language_names(config.language.rename(config.text).table))


# ----------------------------------------------------------------------------------- declaration

LLAVA = image_language_model(
    "llava",
    read_config,
    Llava,
    rename,
    image_size=lambda config: config.image.image,
    ends=llama.ENDS,
)


# --------------------------------------------------------------------------------------- LLaVA-NeXT

_RESOLUTIONS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]


@dataclass(frozen=True)
class NextConfig(Config):
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


def read_next(values: Mapping[str, Any]) -> NextConfig:
    """The configuration; defaults are `transformers`' own.

    Raises:
        CheckpointError: see `read_config`; tiles that are no squares of patches.
    """
    reader = ConfigReader(values)
    reader.refuse_heads("ForConditionalGeneration")
    is_tied = reader.flag("tie_word_embeddings", False)  # not that of `text_config`
    read = read_halves(reader, is_tied=is_tied)
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
    return NextConfig(**fields, resolutions=resolutions, grid=TileGrid(edge=edge, side=rows))


class CanvasEncoder(ImageEncoder):
    """The vectors of a canvas: the whole image's, then those of its tiles, row by row."""

    def __init__(self, config: NextConfig) -> None:
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


class LlavaNext(Llava):
    """Encoder of canvases and language model."""

    def __init__(self, config: NextConfig) -> None:
        super().__init__(config)
        self.encoder = CanvasEncoder(config)
        self.resolutions, self.canvas, self.grid = config.resolutions, config.canvas, config.grid

    @property
    def images(self) -> PromptImages:
        """How its prompts hold images."""
        tokens, token = self.grid.tokens(*self.canvas), self.config.image_token
        return PromptImages(positions=tokens, token_id=token, tokens=tokens, grid=self.grid)


def rename_next(config: NextConfig) -> Rename:
    """LLaVA's, and the vector that ends rows."""
    ends = {f"{prefix}image_newline": "encoder.newline" for prefix in ("", "model.")}
    return Rename({**rename(config).table, **ends})


def canvas_graphs(model: LlavaNext, image: ImageSpec | None) -> Graphs:
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


LLAVA_NEXT = replace(
    LLAVA,
    name="llava_next",
    read_config=read_next,
    build=LlavaNext,
    rename=rename_next,
    graphs=canvas_graphs,
    image_size=lambda config: config.canvas,
)
