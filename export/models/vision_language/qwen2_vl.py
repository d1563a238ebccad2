"""Qwen2-VL and Qwen2.5-VL: positions in three axes, and images of any size.

Papers: Wang et al. 2024, "Qwen2-VL: Enhancing Vision-Language Model's Perception of the World at
Any Resolution", §2.1 (arXiv 2409.12191): an image keeps its size, to whole squares of two by two
patches; the tower rotates queries and keys by a patch's row and column, and two linear layers make
one vector of each square. The language model is Qwen2's, with rotary positions of three axes.
Bai et al. 2025, "Qwen2.5-VL Technical Report", §2.1.1 (arXiv 2502.13923): in most blocks patches
attend to those of their window of 112 by 112 pixels, in a few to all; norms and MLPs are those of
the language model. Windows begin at the upper left, those at the other edges are smaller.
Checkpoints: `model_type: qwen2_vl` (`Qwen/Qwen2-VL-2B-Instruct`, `-7B-Instruct`) and `qwen2_5_vl`
(`Qwen/Qwen2.5-VL-3B-Instruct`, `-7B-Instruct`).

Legend: B images of one size, M rows and columns of a square's patches, N patches, L vectors of an
image (N / M²), P pixels of a patch's side, F windows of an image, G patches of a window, H heads,
K width of a head, E width of the tower, D width.

Differences from `transformers`: images only. An image, there the frames of a short video, is one
frame here, whose weights are summed; an image's vectors are computed once, by `admit`; pixels come
as uint8. A prompt may end with an image, and images may be neighbours: there, a cache continues
each axis by itself, and neighbours are taken for one image. Windows at the edges are filled up and
what fills them is hidden.

Decision D104.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.onnx import is_in_onnx_export

from export.architecture import Architecture, Graphs, LimitedByText
from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Names, Rename, WeightLayout
from export.decoder_graphs.image_tokens import image_token_graphs
from export.decoder_graphs.language_model import ImageLanguageModel, image_language_model
from export.layers.activation import activation
from export.layers.attention.axial_attention import Angles, PatchAttention, PatchBlock, axial_angles
from export.layers.attention.fused import MASKED_SCORE
from export.layers.attention.heads import Heads
from export.layers.attention.rotary import rope_parameters
from export.layers.blocks import MLP, BlockConfig, GatedMLP, RMSNorm
from export.layers.images.vision import PixelNorm, check_recipe
from export.models.decoders import llama
from inference.bundle.inputs import ImageSpec, PatchGrid, PromptImages
from inference.errors import CheckpointError

_TEXT: Mapping[str, Any] = {
    "vocab_size": 152064,
    "hidden_size": 8192,
    "intermediate_size": 29568,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-5,
    "max_window_layers": 80,
    "rope_theta": 1000000.0,
}
"""What `transformers` takes where the file says nothing."""
EPSILON = 1e-6
"""Of the tower's norms."""


@dataclass(frozen=True, kw_only=True)
class TowerConfig:
    """The image tower.

    Attributes:
        blocks: Its blocks.
        patch: P.
        frames: Of the short video that an image is.
        merge: M.
        base: Of the rotary frequencies.
        levels: Blocks, from 0, whose outputs the decoder's first blocks read too.
    """

    blocks: BlockConfig
    patch: int = key("patch_size", 14)
    frames: int = key("temporal_patch_size", 2)
    merge: int = key("spatial_merge_size", 2)
    base: float
    levels: tuple[int, ...] = ()

    @property
    def grid(self) -> PatchGrid:
        """How an image becomes vectors."""
        return PatchGrid(edge=self.patch * self.merge)


@dataclass(frozen=True)
class Config(LimitedByText):
    """Both halves."""

    tower: TowerConfig
    text: llama.Config
    image_token: int
    video_token: int

    @property
    def image(self) -> tuple[int, int]:
        """(height, width) of a small image, of two by two squares."""
        return 2 * self.tower.grid.edge, 2 * self.tower.grid.edge


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; defaults are `transformers`' own.

    Raises:
        CheckpointError: a tower or a language model of another kind.
    """
    reader = ConfigReader(values)
    reader.refuse_heads("ForConditionalGeneration")
    vision = reader.section("vision_config")
    width = vision.integer("embed_dim", 1280)
    blocks = read_blocks(vision, width, width * vision.integer("mlp_ratio", 4), "quick_gelu")
    text = read_text(reader)
    vision.refuse_unless(hidden_size=text.width)
    return Config(read_tower(vision, blocks), text, **read_tokens(reader, text))


def read_blocks(vision: ConfigReader, width: int, mlp_width: int, activation: str) -> BlockConfig:
    """The tower's blocks.

    Args:
        width: E.
        activation: The default.

    Raises:
        CheckpointError: other than three channels, or heads that do not rotate along two axes.
    """
    vision.refuse_unless(in_channels=3, in_chans=3)
    count = vision.integer("num_heads", 16)
    vision.divide(width, 4 * count)
    return BlockConfig(
        layers=vision.layers("depth", 32),
        heads=Heads(width, count),
        mlp_width=mlp_width,
        activation=vision.activation("hidden_act", activation),
        norm_epsilon=EPSILON,
    )


def read_tower(vision: ConfigReader, blocks: BlockConfig) -> TowerConfig:
    """The tower around its blocks, whose heads rotate in pairs along two axes.

    Raises:
        CheckpointError: another kind of rotation.
    """
    parameters = read_rope(vision, vision.values.get("rope_parameters"))
    parameters.refuse_unless(rope_type="axial")
    base = parameters.number("rope_theta", 10000.0)
    return vision.read(TowerConfig, blocks=blocks, base=base)


def read_rope(reader: ConfigReader, given: object) -> ConfigReader:
    """The reader of rotary parameters; of none where the file has none.

    Raises:
        CheckpointError: they are no dictionary.
    """
    return ConfigReader(rope_parameters(reader, given), f"{reader.place}, rope_parameters")


def read_tokens(reader: ConfigReader, text: llama.Config) -> dict[str, int]:
    """The ids that stand for parts of images and videos, by the fields of `Config`.

    Raises:
        CheckpointError: that of images is outside the vocabulary.
    """
    return {
        "image_token": reader.token("image_token_id", 151655, text.vocabulary_size),
        "video_token": reader.index("video_token_id", 151656),
    }


def read_text(reader: ConfigReader) -> llama.Config:
    """The language model, of `text_config` or, in older files, of the file itself.

    Raises:
        CheckpointError: see `open_text`.
    """
    nested = reader.values.get("text_config")
    section = reader if nested is None else reader.section("text_config")
    is_tied = any(each.flag("tie_word_embeddings", False) for each in (reader, section))
    text, heads = open_text(section, _TEXT, (16, 24, 24), is_tied=is_tied)
    heads = replace(heads, bias=True, out_bias=False)
    return llama.read_shape(text, llama.set_windows(text, heads))


def open_text(
    section: ConfigReader, defaults: Mapping[str, Any], sections: Sequence[int], *, is_tied: bool
) -> tuple[ConfigReader, Heads]:
    """The reader of the language model, and its heads.

    Args:
        sections: Default of `mrope_section`.
        is_tied: Whether logits are products with the embedding table.

    Raises:
        CheckpointError: sections that are not those of its heads.
    """
    given = section.given
    rope = given.pop("rope_scaling", None) or given.pop("rope_parameters", None)
    parameters = read_rope(section, rope)
    kinds = [kind for kind in ("rope_type", "type") if parameters.values.get(kind) == "mrope"]
    plain = dict.fromkeys(kinds, "default")
    values = {
        **defaults,
        **given,
        "tie_word_embeddings": is_tied,
        "rope_parameters": {"mrope_section": list(sections), **parameters.values, **plain},
    }
    text = llama.open_config(values, section.place)
    heads = llama.read_heads(text)
    assert heads.rotary is not None
    sections = text.section("rope_parameters").sizes("mrope_section")
    if sum(sections) != heads.width // 2:
        raise CheckpointError(
            f"{text.place}: mrope_section = {list(sections)} must add up to the {heads.width // 2} "
            "pairs of a head"
        )
    return text, replace(heads, rotary=replace(heads.rotary, sections=sections))


# --------------------------------------------------------------------------------------- network


class SquareEmbedding(nn.Module):
    """An image as vectors of its patches, square by square."""

    packed: Tensor

    def __init__(self, config: TowerConfig, *, has_bias: bool = False) -> None:
        super().__init__()
        self.patch, self.merge = config.patch, config.merge
        shape = (config.blocks.width, 3, config.frames, config.patch, config.patch)
        self.weight = nn.Parameter(torch.zeros(shape))
        self.bias = nn.Parameter(torch.zeros(config.blocks.width)) if has_bias else None

    def forward(self, image: Tensor) -> Tensor:
        """(B, 3, height, width) → (B, N, E): the patches of a square follow each other."""
        edge = self.patch * self.merge
        rows, columns = image.shape[2] // edge, image.shape[3] // edge
        x = image[:, :, : rows * edge, : columns * edge]
        x = x.reshape(-1, 3, rows, self.merge, self.patch, columns, self.merge, self.patch)
        x = x.permute(0, 2, 5, 3, 6, 1, 4, 7)  # (B, rows, columns, M, M, 3, P, P)
        x = x.reshape(-1, rows * columns * self.merge**2, 3 * self.patch**2)
        weight = self.packed if is_in_onnx_export() else self._sum_frames()
        return functional.linear(x, weight, self.bias)

    def pack(self) -> None:
        """Stores the weights of one frame; called once before export."""
        self.register_buffer("packed", self._sum_frames().detach().clone(), persistent=False)

    def _sum_frames(self) -> Tensor:
        """(E, 3·P·P): what all frames together are multiplied with, which are alike."""
        return self.weight.sum(dim=2).flatten(1)


class ImageEncoder(nn.Module):
    """Squares of patches, each of them one vector of the language model."""

    def __init__(self, config: TowerConfig, width: int) -> None:
        super().__init__()
        self.config = config
        blocks, squared = config.blocks, config.blocks.width * config.merge**2
        self.patches = SquareEmbedding(config)
        self.blocks = nn.ModuleList(self.make_block() for _ in range(blocks.layers))
        self.norm = self.make_norm()
        self.first = nn.Linear(squared, squared)
        self.activation = activation("gelu")
        self.second = nn.Linear(squared, width)
        self.pixel_norm: nn.Module = nn.Identity()

    def make_norm(self) -> nn.Module:
        """A norm of the tower."""
        return nn.LayerNorm(self.config.blocks.width, eps=EPSILON)

    def make_block(self) -> PatchBlock:
        """A block of the tower."""
        blocks = self.config.blocks
        mlp = MLP(blocks.width, blocks.mlp_width, blocks.activation)
        return PatchBlock(PatchAttention(blocks.heads), mlp, self.make_norm)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8, of whole squares → (B, L, D)."""
        edge = self.config.grid.edge
        x = self.patches(self.pixel_norm(pixels))
        return self.merge(self.run_blocks(x, pixels.shape[1] // edge, pixels.shape[2] // edge))

    def merge(self, x: Tensor) -> Tensor:
        """Patches (B, N, E) → the squares' vectors (B, L, D)."""
        squares = self.norm(x).unflatten(1, (-1, self.config.merge**2)).flatten(2)  # (B, L, M²·E)
        return self.second(self.activation(self.first(squares)))

    def run_blocks(self, x: Tensor, rows: int, columns: int) -> Tensor:
        """(B, N, E) → (B, N, E), of an image of rows and columns of squares."""
        config = self.config
        angles = axial_angles(rows, columns, config.merge, config.blocks.heads.width, config.base)
        for block in self.blocks:
            x = block(x, angles)
        return x


class Qwen2VL(ImageLanguageModel):
    """Image encoder and language model."""

    encoder_type: type[ImageEncoder] = ImageEncoder

    def __init__(self, config: Config) -> None:
        encoder = self.encoder_type(config.tower, config.text.width)
        super().__init__(config, encoder, llama.Llama(config.text))
        self.video_token = config.video_token

    @property
    def images(self) -> PromptImages:
        """How its prompts hold images."""
        grid, token = self.config.tower.grid, self.config.image_token
        tokens = grid.tokens(*self.config.image)
        return PromptImages(positions=tokens, token_id=token, tokens=tokens, grid=grid)


# ----------------------------------------------------------------------------------------- names

_BLOCK = {"norm1": "attention_norm", "norm2": "mlp_norm", "attn.proj": "attention.out"}
_MLP = {"fc1": "up", "fc2": "down"}


def rename(
    config: Config, mlp: Mapping[str, str] = _MLP, language: Architecture = llama.QWEN2
) -> Rename:
    """`transformers`' names → ours: those of published files, and of newer versions.

    Args:
        mlp: Those of a block's MLP.
    """
    table: Names = {}
    own = "encoder.blocks.*"
    block = _BLOCK | {f"mlp.{name}": f"mlp.{part}" for name, part in mlp.items()}
    blocks: Names = {f"blocks.*.{name}": f"{own}.{entry}" for name, entry in block.items()}
    packed = tuple(f"{own}.attention.{part}" for part in ("query", "key", "value"))
    blocks["blocks.*.attn.qkv"] = WeightLayout(packed)
    for prefix in ("visual", "model.visual"):
        table |= {f"{prefix}.{name}": entry for name, entry in blocks.items()}
        table[f"{prefix}.patch_embed.proj"] = "encoder.patches"
        table[f"{prefix}.merger.ln_q"] = "encoder.norm"
        table[f"{prefix}.merger.mlp.0"] = "encoder.first"
        table[f"{prefix}.merger.mlp.2"] = "encoder.second"
    for name, entry in language.rename(config.text).table.items():
        table[name] = entry
        table[name.replace("model.", "model.language_model.", 1)] = entry
    return Rename(table)


# ---------------------------------------------------------------------------------------- graphs


def graphs(model: Qwen2VL, image: ImageSpec | None) -> Graphs:
    """`admit` (B, I, height, width dynamic) and `step` (R, T, P, B, S dynamic; in place).

    Raises:
        CheckpointError: the recipe gives other squares than the configuration.
    """
    assert image is not None
    check_recipe(image, model.config.image)
    model.encoder.pixel_norm = PixelNorm(image)
    levels = 1 + len(model.config.tower.levels)
    return image_token_graphs(model.encoder, model.decoder, image, model.images, levels=levels)


# ----------------------------------------------------------------------------------- declaration

QWEN2_VL = image_language_model(
    "qwen2_vl",
    read_config,
    Qwen2VL,
    rename,
    image_size=lambda config: config.image,
    ends=llama.ENDS,
    graphs=graphs,
)


# --------------------------------------------------------------------------------------- Qwen2.5-VL

_WHOLE = [7, 15, 23, 31]


@dataclass(frozen=True)
class WindowedConfig(TowerConfig):
    """The image tower.

    Attributes:
        window: Rows, and columns, of a window's squares.
        whole: Blocks, from 0, in which patches attend to all others.
    """

    window: int
    whole: frozenset[int]


def read_windowed(values: Mapping[str, Any]) -> Config:
    """The configuration; defaults are `transformers`' own.

    Raises:
        CheckpointError: a tower or a language model of another kind.
    """
    reader = ConfigReader(values)
    reader.refuse_heads("ForConditionalGeneration")
    vision = reader.section("vision_config")
    width = vision.integer("hidden_size", 3584)
    mlp_width = vision.integer("intermediate_size", 3420)
    blocks = read_blocks(vision, width, mlp_width, "silu")
    tower = read_tower(vision, blocks)
    text = read_text(reader)
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
    windowed = WindowedConfig(
        **vars(tower), window=window // tower.merge // tower.patch, whole=frozenset(whole)
    )
    return Config(windowed, text, **read_tokens(reader, text))


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


class WindowedEncoder(ImageEncoder):
    """Qwen2-VL's with windows."""

    config: WindowedConfig

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


class Qwen25VL(Qwen2VL):
    """Image encoder and language model."""

    encoder_type = WindowedEncoder


_GATED_MLP = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"}
QWEN2_5_VL = replace(
    QWEN2_VL,
    name="qwen2_5_vl",
    read_config=read_windowed,
    build=Qwen25VL,
    rename=partial(rename, mlp=_GATED_MLP),
)
