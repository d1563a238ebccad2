"""LLaVA, LLaVA-NeXT and LLaVA-OneVision: a language model that reads patches of images as tokens.

Papers: Liu et al. 2023, "Visual Instruction Tuning", §4.1 (arXiv 2304.08485); Liu et al. 2023,
"Improved Baselines with Visual Instruction Tuning", §3 (arXiv 2310.03744): two linear layers
project the patches of an image tower to the language model's width. Liu et al. 2024, "LLaVA-NeXT:
Improved reasoning, OCR, and world knowledge", with the tiles of "Improved Baselines", §4.2: images
come at one of several resolutions, the vectors of an image's tiles are laid out as one grid, those
of padding are left out, and a learned vector ends each row; in front of them are the vectors of the
whole image as one tile. Li et al. 2024, "LLaVA-OneVision", §3.1 (arXiv 2408.03326): of an image
with more than so many tiles' vectors, their grid is shrunk to as many by bilinear interpolation;
an image that is one of several is one tile, whose vectors are followed by one that ends a row.
Checkpoints: `model_type: llava` (`llava-hf/llava-1.5-7b-hf`, `llava-hf/bakLlava-v1-hf`,
`llava-hf/llava-interleave-qwen-0.5b-hf`) and `llava_next` (`llava-hf/llava-v1.6-mistral-7b-hf`,
`llava-hf/llama3-llava-next-8b-hf`) and `llava_onevision`
(`llava-hf/llava-onevision-qwen2-0.5b-ov-hf`, `-7b-`, `-72b-`) with an image tower of `TOWERS` and a
language model of `LANGUAGE_MODELS`.

Legend: B images (canvases: of one size), N patches, L vectors of an image, n rows and columns of a
tile's vectors, E width of the image tower, D width.

Differences from `transformers`: an image's vectors are computed once, by `admit`; blocks of the
image tower whose output is not read are left out; pixels come as uint8. With tiles, an image comes
as a canvas (`TileGrid`), whose size says what is left out. Videos are not read.

Decision D104.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
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
        defaults: Of its section of `config.json`.
        build: Blocks, image and patch → the tower.
        names: Prefixes of its names and of ours → the table.
        leading: Tokens in front of the patches.
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
    return read_halves(reader, is_tied=_is_tied(reader))


def _is_tied(reader: ConfigReader) -> bool:
    places = (reader, reader.section("text_config"))
    return any(each.flag("tie_word_embeddings", False) for each in places)


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
    given = reader.find("vision_feature_layer", -2)
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
        super().__init__(config, ImageEncoder(config.image, config.text.width))


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
    is_tied = reader.flag("tie_word_embeddings", False)  # not that of `text_config`
    return _read_canvases(reader, _RESOLUTIONS, is_tied=is_tied)


def _read_canvases(
    reader: ConfigReader,
    default: Sequence[Sequence[int]],
    *,
    is_tied: bool,
    most: int | None = None,
) -> NextConfig:
    """The configuration.

    Args:
        default: Of `image_grid_pinpoints`.
        is_tied: As of `read_language`.
        most: As of `TileGrid`.

    Raises:
        CheckpointError: see `read_next`.
    """
    reader.refuse_heads("ForConditionalGeneration")
    read = read_halves(reader, is_tied=is_tied)
    image, (rows, columns) = read.image, patch_grid(read.image.image, read.image.patch)
    edge = image.image[0]
    if image.image != (edge, edge) or rows != columns or image.tokens != rows * columns:
        raise CheckpointError(
            f"config.json: tiles of {image.image} with {image.tokens} vectors are not supported, "
            "only squares with one vector for each patch"
        )
    given = reader.find("image_grid_pinpoints", default)
    resolutions = read_resolutions(given, edge, reader.place)
    fields = {name: getattr(read, name) for name in ("image", "language", "text", "image_token")}
    return NextConfig(
        **fields, resolutions=resolutions, grid=TileGrid(edge=edge, side=rows, most=most)
    )


class CanvasEncoder(ImageEncoder):
    """The vectors of a canvas: the whole image's, then those of its tiles, row by row."""

    def __init__(self, config: NextConfig) -> None:
        super().__init__(config.image, config.text.width)
        self.grid = config.grid
        self.reader = CanvasReader(config.grid, config.resolutions)
        self.newline = nn.Parameter(torch.zeros(config.text.width))

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8, canvases of one size → (B, L, D)."""
        edge, n = self.grid.edge, self.grid.side
        count, height, width = pixels.shape[0], pixels.shape[1], pixels.shape[2]
        rows, columns = height // edge - 1, width // edge
        tiles = pixels[:, edge : height - height % edge, : width - width % edge]
        tiles = tiles.reshape(count, rows, edge, columns, edge, 3).transpose(2, 3)
        tiles = tiles.reshape(-1, edge, edge, 3)
        vectors = super().forward(torch.cat([pixels[:, :edge, :edge], tiles]))  # (…, n², D)
        parts = vectors[count:].reshape(count, rows * columns * n**2, vectors.shape[-1])
        table = torch.cat([parts, self.newline.expand(count, 1, -1)], dim=1)
        size = [torch.scalar_tensor(side, dtype=torch.long) for side in (height, width)]
        return torch.cat([vectors[:count], self.reader(table, torch.stack(size))], dim=1)


class CanvasReader(nn.Module):
    """Which vectors of a canvas's tiles are read, or what lies between them.

    It follows from the canvas's size, and is computed in tensors: a trace that followed such sizes
    as symbols would take minutes.
    """

    sizes: Tensor

    def __init__(self, grid: TileGrid, resolutions: Sequence[tuple[int, int]]) -> None:
        super().__init__()
        self.grid = grid
        if grid.most is None:
            return
        high, wide = (max(sides) // grid.edge for sides in zip(*resolutions, strict=True))
        sizes = [
            [grid.shrunk(rows, columns) for columns in range(wide * grid.side + 1)]
            for rows in range(high * grid.side + 1)
        ]
        self.register_buffer("sizes", torch.tensor(sizes), persistent=False)

    def forward(self, table: Tensor, size: Tensor) -> Tensor:
        """Vectors of all tiles, and one that ends rows (B, …, D) → those that are read, with ends.

        Args:
            size: (2,) int64, height and width of the canvas.
        """
        edge, n = self.grid.edge, self.grid.side
        margins, tiles = size % edge, size // edge - torch.tensor([1, 0])
        shape = tiles * n - 2 * margins
        wanted = shape
        if self.grid.most is not None:
            wanted = self.sizes.flatten(0, 1)[shape[0] * self.sizes.shape[1] + shape[1]]
            wanted = torch.where(tiles[0] > 0, wanted, torch.tensor([1, 0]))  # an end alone
        count = (wanted[0] * (wanted[1] + 1)).item()
        torch._check(count >= 0)
        number = torch.arange(count)
        place = torch.stack([number // (wanted[1] + 1), number % (wanted[1] + 1)])
        is_end = place[1] == wanted[1]

        def take(row: Tensor, column: Tensor) -> Tensor:
            row, column = row + margins[0], column + margins[1]
            tile = row // n * tiles[1] + column // n
            index = tile * n**2 + row % n * n + column % n
            return table.index_select(1, torch.where(is_end, table.shape[1] - 1, index))

        if self.grid.most is None:
            return take(place[0], place[1])
        # as `interpolate` does it: bilinear, corners not aligned
        parts = 2 * wanted.clamp(min=1)[:, None]  # in integers, which are exact
        between = ((2 * place + 1) * shape[:, None] - wanted[:, None]).clamp(min=0)
        low = torch.minimum(between // parts, shape[:, None] - 1)
        high = torch.minimum(low + 1, shape[:, None] - 1)
        down, right = (between % parts).to(table.dtype)[..., None] / parts[..., None]
        upper = (1 - right) * take(low[0], low[1]) + right * take(low[0], high[1])
        lower = (1 - right) * take(high[0], low[1]) + right * take(high[0], high[1])
        return (1 - down) * upper + down * lower


class LlavaNext(Llava):
    """Encoder of canvases and language model."""

    def __init__(self, config: NextConfig) -> None:
        super().__init__(config)
        self.encoder = CanvasEncoder(config)
        self.resolutions, self.canvas, self.grid = config.resolutions, config.canvas, config.grid

    @property
    def images(self) -> PromptImages:
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


# ---------------------------------------------------------------------------------- LLaVA-OneVision

_MOST = re.compile(r"anyres_max_([1-9]\d?)")
_ONEVISION: Mapping[str, Any] = {
    "image_token_index": 151646,
    "vision_feature_layer": -1,
    "vision_feature_select_strategy": "full",
}


def read_onevision(values: Mapping[str, Any]) -> NextConfig:
    """The configuration; defaults are `transformers`' own.

    Raises:
        CheckpointError: see `read_next`; another form of `vision_aspect_ratio`.
    """
    reader = ConfigReader(values)
    sections = {"vision_config": "siglip_vision_model", "text_config": "qwen2"}
    kinds = {
        name: {"model_type": kind, **reader.section(name).given} for name, kind in sections.items()
    }
    reader = ConfigReader({**values, **kinds}, defaults=_ONEVISION)
    form = _MOST.fullmatch(reader.text("vision_aspect_ratio", "anyres_max_9"))
    if form is None:
        raise CheckpointError(
            f"{reader.place}: vision_aspect_ratio = {values['vision_aspect_ratio']!r} is not "
            "supported, only anyres_max_1 to anyres_max_99"
        )
    sizes = list(product(range(384, 2305, 384), repeat=2))
    return _read_canvases(reader, sizes, is_tied=_is_tied(reader), most=int(form[1]))


LLAVA_ONEVISION = replace(LLAVA_NEXT, name="llava_onevision", read_config=read_onevision)
