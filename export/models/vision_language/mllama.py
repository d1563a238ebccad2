"""Llama 3.2 Vision: Llama with gated layers between its own, which read the tiles of images.

Papers: Llama Team 2024, "The Llama 3 Herd of Models", §7 (arXiv 2407.21783): an image encoder whose
layers' outputs are read side by side, and cross-attention layers between those of the language
model; Alayrac et al. 2022, "Flamingo", §2.2 (arXiv 2204.14198), where their gates come from.
Checkpoints: `model_type: mllama` (`meta-llama/Llama-3.2-11B-Vision`, `-11B-Vision-Instruct`,
`-90B-Vision`, `-90B-Vision-Instruct`).

An image comes as a canvas of whole tiles (`TileCanvas`), whose rows and columns choose one of the
learned positions. The encoder always reads the greatest number of tiles: those that a canvas lacks
are zeros. As in `transformers`, only padding does not see padding; a token in front of all images
attends to all tiles of all images, also to those that are padding, and its MLP alone is left out;
of images side by side, a token behind them attends to all. A text without images passes none of the
gated layers.

Legend: B images (canvases of one size), t tiles of the largest canvas, n² patches of a tile, P
positions of a tile (its patches and the class token), E width of the image tower, R rows, T new
positions, S source positions (t · P of each image), D width, V vocabulary.

Differences from `transformers`: keys and values of an image are computed once, by `admit`; which
image a token attends to follows from the tokens, as `MllamaProcessor` derives it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from export.architecture import Graphs, LimitedByText
from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Names, Rename, projections
from export.decoder_graphs.interleaved import (
    AdmitImages,
    ImageCounter,
    InterleavedDecoder,
    interleaved_graphs,
)
from export.decoder_graphs.language_model import (
    ImageLanguageModel,
    image_language_model,
    language_names,
)
from export.layers.attention.fused import MASKED_SCORE
from export.layers.attention.gated_cross import GatedCrossBlock, ImageAttention, ImageMask
from export.layers.attention.heads import KeyValue
from export.layers.blocks import BlockConfig, GatedMLP, RMSNorm, make_encoder_blocks
from export.layers.images.vision import FixedSizeTower, PatchEmbedding, patch_count, prepare_tower
from export.models.decoders import llama
from export.tokenizer.prompt_images import IMAGE_TOKEN
from inference.bundle.inputs import CanvasTiles, ImageSpec, PromptImages, TileCanvas
from inference.bundle.manifest import Role
from inference.bundle.manifest import Tensor as Port
from inference.errors import CheckpointError

# ---------------------------------------------------------------------------------------- config

FURTHER_ROWS = 8
"""Of the embedding table, behind the vocabulary that is scored: an image's token is one."""
MOST_TILES = 16
_PADDED_TO = 8
"""A tile's positions are padded to a multiple of it."""
_ENDS = {"bos_token_id": 128000, "eos_token_id": 128001}
_TEXT: dict[str, Any] = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "layer_norm_epsilon": 1e-5,
    "rope_theta": 500000.0,
}
_VISION = {
    "num_hidden_layers": 32,
    "hidden_size": 1280,
    "num_attention_heads": 16,
    "intermediate_size": 5120,
    "layer_norm_eps": 1e-5,
}
_VISION_NAMES = {"num_attention_heads": "attention_heads", "layer_norm_eps": "norm_eps"}


@dataclass(frozen=True, kw_only=True)
class ImageConfig:
    """The image tower.

    Attributes:
        edge: Height and width of a tile in pixels.
        most: t.
        read: Blocks whose outputs are read, from 0.
    """

    tower: BlockConfig
    global_layers: int = key("num_global_layers", 8, "layers")
    edge: int = key("image_size", 448)
    patch: int = key("patch_size", 14)
    most: int
    read: tuple[int, ...]

    @property
    def grids(self) -> list[tuple[int, int]]:
        """Rows and columns of all canvases; the first one's learned positions have number 1."""
        return CanvasTiles(most=self.most).grids

    @property
    def positions(self) -> int:
        """P."""
        return patch_count((self.edge, self.edge), (self.patch, self.patch)) + 1


@dataclass(frozen=True)
class Config(LimitedByText):
    """Image tower and language model.

    Attributes:
        text: Of the layers that attend to text.
        gated: Places of the others among all layers.
    """

    image: ImageConfig
    text: llama.Config
    gated: tuple[int, ...]
    image_token: int


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; defaults are `transformers`' own.

    Raises:
        CheckpointError: layers or tiles that are not computed.
    """
    reader = ConfigReader(values)
    reader.refuse_heads("ForConditionalGeneration")
    section = reader.section("text_config")
    text = llama.open_config(section.values, section.place, **_TEXT)
    text.refuse_unless(head_dim=None)
    heads = replace(llama.read_heads(text), bias=False, out_bias=False)
    count, rows = text.layers("num_hidden_layers"), text.integer("vocab_size") + FURTHER_ROWS
    gated = _layers(text, "cross_attention_layers", list(range(3, 40, 5)), count)
    if 0 in gated:
        raise CheckpointError(
            f"{text.place}: cross_attention_layers = {list(gated)} is not supported: the first "
            "layer attends to text"
        )
    name = IMAGE_TOKEN if IMAGE_TOKEN in reader.given else "image_token_index"
    return Config(
        _read_image(reader),
        # `transformers` ties nothing here, and reads no bias of the MLP
        replace(
            llama.read_shape(text, (heads,) * (count - len(gated))),
            has_tied_output=False,
            has_mlp_bias=False,
        ),
        gated,
        reader.token(name, 128256, rows),
    )


def _read_image(reader: ConfigReader) -> ImageConfig:
    vision = reader.section("vision_config", _VISION, _VISION_NAMES)
    vision.refuse_unless(num_channels=3)
    llama.read_positive(vision, "norm_eps", 1e-5)  # padding is zeros
    tower = vision.read(BlockConfig)
    tower = replace(tower, heads=replace(tower.heads, bias=False, out_bias=False))
    read = _layers(vision, "intermediate_layers_indices", [3, 7, 15, 23, 30], tower.layers)
    width, most = tower.width * (len(read) + 1), vision.integer("max_num_tiles", 4)
    default, wanted = ([list(grid) for grid in CanvasTiles(most=n).grids] for n in (4, most))
    given = vision.find("supported_aspect_ratios", default)
    if most > MOST_TILES or given != wanted:
        raise CheckpointError(
            f"{vision.place}: supported_aspect_ratios = {given!r} is not supported, only those of "
            f"all canvases with max_num_tiles = {most}, at most {MOST_TILES}"
        )
    if vision.integer("vision_output_dim", 7680) != width:
        raise CheckpointError(
            f"{vision.place}: vision_output_dim is not the {width} of {len(read) + 1} outputs"
        )
    return vision.read(ImageConfig, tower=tower, most=most, read=read)


def _layers(reader: ConfigReader, name: str, default: list[int], count: int) -> tuple[int, ...]:
    """Places of layers, in growing order.

    Raises:
        CheckpointError: something else.
    """
    given = reader.find(name, default)
    places = given if isinstance(given, list) else [None]
    is_inside = all(type(place) is int and 0 <= place < count for place in places)
    if not places or not is_inside or places != sorted(set(places)):
        raise CheckpointError(
            f"{reader.place}: {name} must be a growing list of layers 0 to {count - 1}, "
            f"not {given!r}"
        )
    return tuple(places)


# ----------------------------------------------------------------------------------- image tower


class TilePositions(nn.Module):
    """Learned vectors of a canvas's tiles, by its rows and columns; squashed by a gate."""

    def __init__(self, config: ImageConfig, positions: int) -> None:
        super().__init__()
        self.shape = (config.most, positions, config.tower.width)
        size = config.most * positions * config.tower.width
        self.table = nn.Parameter(torch.zeros(len(config.grids) + 1, size))
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, grid: Tensor) -> Tensor:
        """(1,) the number of a grid → (t, positions, E)."""
        return self.gate.tanh() * self.table.index_select(0, grid).reshape(self.shape)


class Gate(nn.Module):
    """x · tanh(α)."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """(…, E) → (…, E)."""
        return self.alpha.tanh() * x


class TileTower(FixedSizeTower):
    """Canvases → the vectors of their tiles, which see each other."""

    numbers: Tensor

    def __init__(self, config: ImageConfig) -> None:
        super().__init__((config.edge, config.edge))
        self.config = config
        width, square = config.tower.width, (config.patch, config.patch)
        self.patches = PatchEmbedding(width, square, bias=False)
        self.class_token = nn.Parameter(torch.zeros(width))
        self.positions = nn.Parameter(torch.zeros(config.positions, width))
        self.tile_positions = TilePositions(config, config.positions)
        self.first_tiles, self.last_tiles = TilePositions(config, 1), TilePositions(config, 1)
        self.first_norm, self.last_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.blocks = make_encoder_blocks(config.tower, is_norm_first=True)
        behind = replace(config.tower, layers=config.global_layers)
        self.global_blocks = make_encoder_blocks(behind, is_norm_first=True, behind=Gate)
        most, numbers = config.most, torch.zeros(config.most**2, dtype=torch.long)
        for number, (rows, columns) in enumerate(config.grids, 1):
            numbers[(rows - 1) * most + columns - 1] = number
        self.register_buffer("numbers", numbers, persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → (B, t, P, k · E), of k outputs side by side."""
        config, (edge, _), count = self.config, self.size, pixels.shape[0]
        rows, columns = pixels.shape[1] // edge, pixels.shape[2] // edge
        sides = [torch.scalar_tensor(side, dtype=torch.long) for side in (rows, columns)]
        grid = self.numbers.index_select(0, ((sides[0] - 1) * config.most + sides[1] - 1)[None])
        tiles = pixels.reshape(count, rows, edge, columns, edge, 3).transpose(2, 3)
        x = self.patches(self.pixel_norm(tiles.reshape(-1, edge, edge, 3)))
        x = x.reshape(count, rows * columns, config.positions - 1, x.shape[-1])
        missing = x.new_zeros(count, config.most, config.positions - 1, x.shape[-1])
        x = torch.cat([x, missing], dim=1)[:, : config.most] + self.first_tiles(grid)
        x = torch.cat([self.class_token.expand(count, config.most, 1, -1), x], dim=2)
        kept = 1 - self.tile_positions.gate.tanh()
        x = self.first_norm(x + kept * self.positions + self.tile_positions(grid))
        x = functional.pad(x, (0, 0, 0, -config.positions % _PADDED_TO))  # (B, t, P', E)
        shape, bias = (count, config.most, -1, x.shape[-1]), self._bias(sides[0] * sides[1])
        x, read = x.flatten(1, 2), []
        for place, block in enumerate(self.blocks):
            x = block(x, None, bias)
            if place in config.read:
                read.append(x)
        x = self.last_norm(x).reshape(shape) + self.last_tiles(grid)
        x = x.flatten(1, 2)
        for block in self.global_blocks:
            x = block(x, None, bias)
        # the outputs of each of E lie side by side
        outputs = torch.cat([x, torch.stack(read, dim=-1).flatten(-2)], dim=-1)
        return outputs.reshape(*shape[:3], outputs.shape[-1])[:, :, : config.positions]

    def _bias(self, tiles: Tensor) -> Tensor:
        """(1, 1, t · P', t · P'): padding, of canvases and of tiles, does not see padding.

        Args:
            tiles: Of the canvas.
        """
        positions, most = self.config.positions, self.config.most
        place = torch.arange(positions + -positions % _PADDED_TO) >= positions
        padding = (place[None] | (torch.arange(most) >= tiles)[:, None]).flatten()
        return torch.where(padding[:, None] & padding, MASKED_SCORE, 0.0)[None, None]


class ImageEncoder(nn.Module):
    """The tower and its projection."""

    def __init__(self, config: ImageConfig, width: int) -> None:
        super().__init__()
        self.vit = TileTower(config)
        self.projection = nn.Linear(config.tower.width * (len(config.read) + 1), width)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → (B, t · P, D)."""
        return self.projection(self.vit(pixels)).flatten(1, 2)


# --------------------------------------------------------------------------------- language model


@dataclass(frozen=True)
class TileMask(ImageMask):
    """The tiles that each token of a call attends to; `gate` is 0 in texts without images."""

    mlp_gate: Tensor
    """(R, T, 1): 1, or 0 for a token in front of all images."""


@dataclass(frozen=True)
class TileCounter(ImageCounter):
    """Counts images; its state: those passed, the first of the last ones that lie side by side,
    and 1 where the last token stands for an image.
    """

    width: ClassVar[int] = 3
    held: ClassVar[tuple[Port, ...]] = (
        Port(name="image_tiles", dtype="int64", shape=("B", "S"), role=Role.STATE),
    )
    """1 where a position is one of a canvas, 0 where its tile is padding."""

    def mask(
        self, tokens: Tensor, seen: Tensor, source: Tensor, last: Tensor, room: int, *held: Tensor
    ) -> tuple[ImageMask, Tensor]:
        images, (tiles,) = source.long() // self.positions, held
        count, size = images.shape[0], tokens.shape[1]
        first, number, after = self.runs(tokens, seen, images, last)
        owner = torch.arange(room, device=tokens.device) // self.positions + 1
        start, end = (each.reshape(count, -1)[:, None, :, None] for each in (first, number))
        is_read = (owner >= start) & (owner <= end) & (tiles > 0)[:, None, None]
        is_own = owner <= images[:, None, None, None]
        bias = torch.where(is_read | ((end == 0) & is_own), 0.0, MASKED_SCORE)
        has_images = (images > 0).float()[:, None, None].expand(number.shape)
        gates = (each.reshape(-1, size, 1) for each in (has_images, (number > 0).float()))
        return TileMask(bias, *gates), after

    def runs(
        self, tokens: Tensor, seen: Tensor, images: Tensor, last: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The first and the last of each token's images, (B, W, T) from 1, 0 for none; the state.

        Args:
            tokens: (R, T).
            seen: (R, 3) int64.
            images: (B,) int64.
            last: (R,) index of each row's last real token.
        """
        count, size = images.shape[0], tokens.shape[1]
        rows = tokens.reshape(count, -1, size)
        before = seen.reshape(count, -1, 1, 3)
        passed = before[..., 0] + (rows == self.image_token).long().cumsum(-1)
        most = images[:, None, None]
        number = torch.minimum(passed, most)
        is_image = ((rows == self.image_token) & (passed <= most)).long()
        begins = is_image * (1 - torch.cat([before[..., 2], is_image[..., :-1]], dim=-1))
        places = torch.arange(size, device=tokens.device)
        reached = places[:, None] >= places  # (T, T): the second not behind the first
        starts = torch.where(reached, (begins * number)[..., None, :], 0).amax(dim=-1)
        first = torch.maximum(before[..., 1], starts)
        after = torch.stack([number, first, is_image], dim=-1).reshape(*tokens.shape, 3)
        index = last[:, None, None].expand(-1, 1, 3)
        return first, number, after.gather(1, index).squeeze(1)


class TileBlock(GatedCrossBlock):
    """Attention to tiles and MLP, each behind a norm, gated, and with a residual."""

    def forward(self, x: Tensor, images: KeyValue, mask: ImageMask) -> Tensor:
        """(R, T, D) → (R, T, D)."""
        assert isinstance(mask, TileMask)
        read = self.attention.read(self.attention_norm(x), images, mask)
        x = x + self.attention_gate.tanh() * read
        return x + self.mlp_gate.tanh() * (self.mlp(self.mlp_norm(x)) * mask.mlp_gate)


class Decoder(InterleavedDecoder):
    """Tokens, and the images before them → scores of the next token."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        text, norm = config.text, partial(RMSNorm, eps=config.text.norm_epsilon)
        self.heads = text.layers[0]
        self.vocabulary_size = text.vocabulary_size
        places = range(len(text.layers) + len(config.gated))
        self.order = [place in config.gated for place in places]
        self.tokens = nn.Embedding(text.vocabulary_size + FURTHER_ROWS, text.width)
        self.blocks = nn.ModuleList(llama.make_block(text, heads) for heads in text.layers)
        heads = replace(self.heads, rotary=None)
        self.gated_blocks = nn.ModuleList(
            TileBlock(
                ImageAttention(heads, text.width, norm),
                GatedMLP(text.width, text.mlp_width, text.activation),
                partial(norm, text.width),
                "float",
            )
            for _ in config.gated
        )
        self.norm = norm(text.width)
        self.output = nn.Parameter(torch.zeros(text.vocabulary_size, text.width))


class Mllama(ImageLanguageModel):
    """Image encoder and decoder."""

    decoder: Decoder
    begins_behind_images = True

    def __init__(self, config: Config) -> None:
        super().__init__(config, ImageEncoder(config.image, config.text.width), Decoder(config))

    @property
    def images(self) -> PromptImages:
        """How its prompts hold images."""
        image = self.config.image
        canvas = TileCanvas(edge=image.edge, most=image.most)
        return PromptImages(
            positions=image.most * image.positions,
            token_id=self.config.image_token,
            is_scored=self.config.image_token < self.config.text.vocabulary_size,
            grid=canvas,
        )


# ----------------------------------------------------------------------------------------- names


def rename(config: Config) -> Rename:
    """`transformers`' names → ours: those of published files, and of newer versions."""
    table: Names = {}
    for prefix in ("", "model."):
        table |= {f"{prefix}{theirs}": f"encoder.{ours}" for theirs, ours in _IMAGE_NAMES.items()}
    norms = {"input_layernorm": "attention_norm", "post_attention_layernorm": "mlp_norm"}
    mlp = {f"mlp.{name}_proj": f"mlp.{name}" for name in ("gate", "up", "down")}
    gated: Names = {
        **norms,
        **mlp,
        **projections("cross_attn", "attention", "q_proj k_proj v_proj o_proj"),
        "cross_attn.q_norm": "attention.query_norm",
        "cross_attn.k_norm": "attention.key_norm",
        "cross_attn_attn_gate": "attention_gate",
        "cross_attn_mlp_gate": "mlp_gate",
    }
    own = Rename(llama.NAMES).prefixed("", "decoder.")
    text = {name: entry for name, entry in own.items() if "*" not in name}
    text["lm_head.weight"] = "decoder.output"
    places = range(len(config.text.layers) + len(config.gated))
    plain = [place for place in places if place not in config.gated]
    for number, place in enumerate(config.gated):
        for theirs, ours in gated.items():
            text[f"model.layers.{place}.{theirs}"] = f"decoder.gated_blocks.{number}.{ours}"
    for number, place in enumerate(plain):
        for name, entry in own.items():
            if "*" in name:
                ours = entry.replace("*", str(number)) if isinstance(entry, str) else entry
                text[name.replace("*", str(place))] = ours
    return Rename(table | language_names(text))


def _block_names(theirs: str, ours: str) -> Names:
    return {
        **projections(f"{theirs}.self_attn", f"{ours}.attention", "q_proj k_proj v_proj o_proj"),
        f"{theirs}.mlp.fc1": f"{ours}.mlp.up",
        f"{theirs}.mlp.fc2": f"{ours}.mlp.down",
        f"{theirs}.input_layernorm": f"{ours}.attention_norm",
        f"{theirs}.post_attention_layernorm": f"{ours}.mlp_norm",
        f"{theirs}.gate_attn": f"{ours}.attention_out_norm.alpha",
        f"{theirs}.gate_ffn": f"{ours}.mlp_out_norm.alpha",
    }


_IMAGE_NAMES: Names = {
    "vision_model.patch_embedding": "vit.patches.projection",
    "vision_model.class_embedding": "vit.class_token",
    "vision_model.gated_positional_embedding.embedding": "vit.positions",
    "vision_model.gated_positional_embedding.gate": "vit.tile_positions.gate",
    "vision_model.gated_positional_embedding.tile_embedding.weight": "vit.tile_positions.table",
    "vision_model.pre_tile_positional_embedding.embedding.weight": "vit.first_tiles.table",
    "vision_model.pre_tile_positional_embedding.gate": "vit.first_tiles.gate",
    "vision_model.post_tile_positional_embedding.embedding.weight": "vit.last_tiles.table",
    "vision_model.post_tile_positional_embedding.gate": "vit.last_tiles.gate",
    "vision_model.layernorm_pre": "vit.first_norm",
    "vision_model.layernorm_post": "vit.last_norm",
    **_block_names("vision_model.transformer.layers.*", "vit.blocks.*"),
    **_block_names("vision_model.global_transformer.layers.*", "vit.global_blocks.*"),
    "multi_modal_projector": "projection",
}


# ---------------------------------------------------------------------------------------- graphs


class AdmitTiles(AdmitImages):
    """`admit`, with the positions that are no padding."""

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """(B, I, height, width, 3) uint8 → (B, S), then keys and values of each gated block."""
        keys = super().forward(pixels)
        config = cast(TileTower, self.encoder.get_submodule("vit")).config
        edge, most = config.edge, config.most
        tiles = (pixels.shape[2] // edge) * (pixels.shape[3] // edge)
        is_real = (torch.arange(most) < tiles).long()[:, None].expand(-1, config.positions)
        return is_real.flatten().repeat(pixels.shape[0], pixels.shape[1]), *keys


def graphs(model: Mllama, image: ImageSpec | None) -> Graphs:
    """`admit` (B, I, height, width dynamic) and `step` (R, T, P, B, S dynamic; in place).

    Raises:
        CheckpointError: the recipe has other tiles than the configuration.
    """
    image, images, most = (
        prepare_tower(model.encoder.vit, image),
        model.images,
        model.config.image.most,
    )
    if isinstance(image.tiles, CanvasTiles) and image.tiles.most != most:
        raise CheckpointError(
            f"the image recipe has max_image_tiles = {image.tiles.most}, config.json "
            f"max_num_tiles = {most}"
        )
    counter = TileCounter(images.token_id, images.positions)
    return interleaved_graphs(model.encoder, model.decoder, image, images, counter, AdmitTiles)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = image_language_model(
    "mllama",
    read_config,
    Mllama,
    rename,
    image_size=lambda config: (config.image.edge, config.image.edge),
    ends=_ENDS,
    graphs=graphs,
)
