"""Idefics2, Idefics3 and SmolVLM: language models that read images, or tiles, as few tokens.

Papers: Laurençon et al. 2024, "What matters when building vision-language models?", §3 and §4.1
(arXiv 2405.02246): images keep their aspect ratio, their patches read the tower's positions by
their place in parts of the image (Dehghani et al. 2023, "Patch n' Pack", arXiv 2307.06304), and a
Perceiver resampler makes as many vectors of each; the four quarters of an image may come before it.
Laurençon et al. 2024, "Building and better understanding vision-language models", §4
(arXiv 2408.12637); Marafioti et al. 2025, "SmolVLM", §2 (arXiv 2504.05299): an image is divided
into tiles of the tower's size and comes once more as a whole; s x s neighbouring patches are
concatenated (pixel shuffle) before one linear layer projects them.
Checkpoints: `model_type: idefics2` (`HuggingFaceM4/idefics2-8b`, `-base`, `-chatty`), `idefics3`
(`HuggingFaceM4/Idefics3-8B-Llama3`, `HuggingFaceTB/SmolVLM-256M-Instruct`, `-500M-`) and `smolvlm`
(`HuggingFaceTB/SmolVLM2-*`), whose language model is one of `LANGUAGE_MODELS` (`llava.py`).

Legend: B tiles, or images of one size, N patches, s `scale_factor`, L tokens of a tile (N / s²) or
of an image (latents), E width of the image tower, D width.

Differences from `transformers`: vectors are computed once, by `admit`; pixels come as uint8. Images
are read at their own size and tiles are whole: there is no padding, so there is no mask. Videos are
not read.

Decision D104.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from export.architecture import Architecture, LimitedByText
from export.checkpoint.checkpoint import Checkpoint
from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Entry, Rename, projections
from export.decoder_graphs.language_model import (
    DecoderConfig,
    ImageLanguageModel,
    image_language_model,
)
from export.layers.blocks import BASE, BlockConfig, GatedMLP, RMSNorm
from export.layers.images.vision import PixelNorm, patch_grid
from export.models.decoders import llama
from export.models.dual_encoders import siglip
from export.models.vision_language import perceiver_resampler
from export.models.vision_language.llava import read_language
from export.tokenizer.prompt_images import AROUND, IMAGE_TOKEN, check_tokens
from export.tokenizer.tokenizer import special_text
from inference.bundle.inputs import ImageSpec, PatchGrid, PromptImages
from inference.errors import CheckpointError

# ---------------------------------------------------------------------------------------- config


_IMAGE_DEFAULTS = BASE | {
    "hidden_size": 1152,
    "num_attention_heads": 16,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}


@dataclass(frozen=True, kw_only=True)
class Config(LimitedByText):
    """Image tower, pixel shuffle and language model.

    Attributes:
        image: Side of a tile in pixels.
        patch: Side of a patch in pixels.
        scale: s.
    """

    tower: BlockConfig = key()
    image: int = key("image_size", 224)
    patch: int = key("patch_size", 32)
    scale: int
    language: Architecture
    text: DecoderConfig
    image_token: int

    @property
    def side(self) -> int:
        """Patches in a row of a tile."""
        return patch_grid((self.image, self.image), (self.patch, self.patch))[0]

    @property
    def tokens(self) -> int:
        """L."""
        return (self.side // self.scale) ** 2


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; defaults are `transformers`' own.

    Raises:
        CheckpointError: another language model; patches that s does not divide.
    """
    reader = ConfigReader(values)
    reader.refuse_heads("ForConditionalGeneration")
    vision = reader.section("vision_config", _IMAGE_DEFAULTS)
    vision.refuse_unless(num_channels=3)
    is_tied = reader.flag("tie_word_embeddings", False)
    language, text = read_language(reader, is_tied=is_tied)
    config = vision.read(
        Config,
        scale=reader.integer("scale_factor", 2),
        language=language,
        text=text,
        image_token=reader.token(IMAGE_TOKEN, 128257, text.vocabulary_size),
    )
    if config.side % config.scale:
        raise CheckpointError(
            f"{reader.place}: scale_factor = {config.scale} does not divide the {config.side} "
            "patches in a row of vision_config"
        )
    return config


# --------------------------------------------------------------------------------------- network


def row_bounds(side: int) -> Tensor:
    """(side - 1,) parts of an image between which a row of the position table stands."""
    return torch.arange(1 / side, 1.0, 1 / side)


def trained_rows(count: int, bounds: Tensor) -> Tensor:
    """(count,) rows of the position table, with those bounds, that rows of patches read.

    Idefics2 maps patches of images of any size to the table by their place in parts of the image
    (arXiv 2405.02246, §3.2), and rounds it in float32, so that rows of a whole tile read a
    neighbour's position for some `side`.
    """
    # in halves, which are exact: ONNX Runtime rounds a product with 1 / count as a quotient
    halves = torch.full((), 2.0) / torch.scalar_tensor(count, dtype=torch.long)
    places = (torch.arange(count).float() * halves).clamp(max=2 * (1.0 - 1e-6))
    return (places[:, None] >= 2 * bounds).sum(dim=-1)


class ImageEncoder(nn.Module):
    """SigLIP's tower, pixel shuffle and projection."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.side, self.scale = config.side, config.scale
        size = (config.image, config.image)
        self.vit = siglip.VisionTransformer(config.tower, size, (config.patch, config.patch))
        rows = trained_rows(self.side, row_bounds(self.side))
        self.vit.order = (rows[:, None] * self.side + rows).flatten()
        read = config.tower.width * config.scale**2
        self.projection = nn.Linear(read, config.text.width, bias=False)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → (B, L, D)."""
        x = self.vit.norm(self.vit.layer_outputs(pixels)[-1])
        s, rows = self.scale, self.side // self.scale
        x = x.unflatten(1, (rows, s, rows, s)).transpose(2, 3)  # (B, rows, columns, s, s, E)
        return self.projection(x.flatten(3).flatten(1, 2))


class Idefics3(ImageLanguageModel):
    """Image encoder and language model."""

    def __init__(self, config: Config) -> None:
        super().__init__(config, ImageEncoder(config))

    def tile_texts(self, checkpoint: Checkpoint, place: str) -> dict[str, str]:
        """What the checkpoint's processor writes for an image, as fields of `TileTexts`.

        Raises:
            CheckpointError: see `check_tokens`.
        """
        check_tokens(checkpoint, self.config.tokens, "image_seq_len", 169)
        around = special_text(checkpoint, "fake_image_token") or AROUND
        whole = special_text(checkpoint, "global_image_token") or "<global-img>"
        single = f"{around}{whole}{place}{around}"
        return {
            "tile": f"{around}<row_{{row}}_col_{{column}}>{place}",
            "row_end": "\n",
            "whole": f"\n{single}",
            "single": single,
        }


# ----------------------------------------------------------------------------------------- names


def rename(config: Config) -> Rename:
    """`transformers`' names → ours."""
    projection: dict[str, Entry] = {
        "model.connector.modality_projection.proj": "encoder.projection"
    }
    return Rename(projection | _shared_names(config))


def _shared_names(config: Config | Idefics2Config) -> dict[str, Entry]:
    """The table of the image tower and of the language model."""
    table = siglip.vision_names("model.vision_model", "encoder.vit")
    for name, entry in config.language.rename(config.text).table.items():
        table[name.replace("model.", "model.text_model.", 1)] = entry
    return table


# ----------------------------------------------------------------------------------- declaration

IDEFICS3 = image_language_model(
    "idefics3",
    read_config,
    Idefics3,
    rename,
    image_size=lambda config: (config.image, config.image),
    ends=llama.ENDS,
)


# ----------------------------------------------------------------------------------------- Idefics2

_TEXT = {"model_type": "mistral", "max_position_embeddings": 32768, "rms_norm_eps": 1e-5}
"""Where a file has no `text_config`."""


@dataclass(frozen=True, kw_only=True)
class Idefics2Config(LimitedByText):
    """Image tower, resampler and language model.

    Attributes:
        image: Side, in pixels, of an image whose patches read each its own position.
        patch: Side of a patch in pixels.
    """

    tower: BlockConfig = key()
    image: int = key("image_size", 224)
    patch: int = key("patch_size", 32)
    resampler: perceiver_resampler.Config
    language: Architecture
    text: DecoderConfig
    image_token: int

    @property
    def tokens(self) -> int:
        """L."""
        return self.resampler.latents


def read_idefics2(values: Mapping[str, Any]) -> Idefics2Config:
    """The configuration; defaults are `transformers`' own.

    Raises:
        CheckpointError: another language model; heads that cannot share keys evenly.
    """
    reader = ConfigReader({"text_config": _TEXT, **ConfigReader(values).given})
    reader.refuse_heads("ForConditionalGeneration")
    vision = reader.section("vision_config", siglip.DEFAULTS)
    vision.refuse_unless(num_channels=3)
    is_tied = reader.flag("tie_word_embeddings", False)
    language, text = read_language(reader, is_tied=is_tied, default="mistral")
    config = vision.read(
        Idefics2Config,
        resampler=_read_resampler(reader.section("perceiver_config"), text),
        language=language,
        text=text,
        image_token=reader.token(IMAGE_TOKEN, 32001, text.vocabulary_size),
    )
    patch_grid((config.image, config.image), (config.patch, config.patch))
    return config


def _read_resampler(perceiver: ConfigReader, text: DecoderConfig) -> perceiver_resampler.Config:
    """The resampler, whose norms are the language model's where the file has another width.

    Raises:
        CheckpointError: see `read_idefics2`.
    """
    heads = perceiver.integer("resampler_n_heads", 16)
    groups = perceiver.integer("num_key_value_heads", 4)
    if heads % groups:
        raise CheckpointError(
            f"{perceiver.place}: resampler_n_heads = {heads} is not a multiple of "
            f"num_key_value_heads = {groups}"
        )
    epsilon = perceiver.number("rms_norm_eps", 1e-6)
    if perceiver.integer("hidden_size", 4096) != text.width:
        epsilon = text.norm_epsilon
    return perceiver.read(
        perceiver_resampler.Config,
        width=text.width,
        layers=perceiver.layers("resampler_depth", 3),
        has_head_norms=False,
        groups=groups,
        norm=partial(RMSNorm, eps=epsilon),
        context_norm=perceiver_resampler.Weight,
        mlp=GatedMLP,
        activation=perceiver.activation("hidden_act", "silu"),
    )


class AnySizeTransformer(siglip.VisionTransformer):
    """SigLIP's tower, for images of any size."""

    bounds: Tensor

    def __init__(self, config: Idefics2Config) -> None:
        image, self.patch = (config.image, config.image), config.patch
        super().__init__(config.tower, image, (config.patch, config.patch))
        self.side = config.image // config.patch
        # of a graph, a constant: ONNX would count its steps in float32
        self.register_buffer("bounds", row_bounds(self.side), persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → (B, N, E); what is beyond whole patches is not read."""
        rows, columns = (
            trained_rows(size // self.patch, self.bounds) for size in pixels.shape[1:3]
        )
        order = (rows[:, None] * self.side + columns).flatten()
        x = self.patches(self.pixel_norm(pixels)) + self.positions[order]
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def prepare(self, image: ImageSpec) -> None:
        """Takes prepared uint8 pixels from now on, not a normalised image.

        Raises:
            CheckpointError: images of the recipe may be smaller than a patch.
        """
        patch_grid(image.shape[:2], (self.patch, self.patch))
        self.pixel_norm = PixelNorm(image)


class LatentEncoder(nn.Module):
    """The tower, a gated projection to the language model's width, and the resampler."""

    def __init__(self, config: Idefics2Config) -> None:
        super().__init__()
        text = config.text
        self.vit = AnySizeTransformer(config)
        self.projection = GatedMLP(config.tower.width, text.mlp_width, text.activation)
        self.projection.down = nn.Linear(text.mlp_width, text.width, bias=False)
        self.resampler = perceiver_resampler.PerceiverResampler(config.resampler)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → (B, L, D)."""
        return self.resampler(self.projection(self.vit(pixels)))


class Idefics2(ImageLanguageModel):
    """Image encoder and language model."""

    def __init__(self, config: Idefics2Config) -> None:
        super().__init__(config, LatentEncoder(config))

    @property
    def images(self) -> PromptImages:
        """How its prompts hold images."""
        tokens = self.config.tokens
        grid = PatchGrid(edge=self.config.patch, latents=tokens)
        return super().images.model_copy(update={"grid": grid})

    def tile_texts(self, checkpoint: Checkpoint, place: str) -> dict[str, str]:
        """What the checkpoint's processor writes for an image, as fields of `TileTexts`.

        Raises:
            CheckpointError: see `check_tokens`.
        """
        check_tokens(checkpoint, self.config.tokens, "image_seq_len", 64)
        around = special_text(checkpoint, "image_boundary_token") or AROUND
        single = f"{around}{place}{around}"
        return {"tile": f"{around}{place}", "whole": single, "single": single, "edge": around}


_RESAMPLER = {
    "input_latents_norm": "attention.latents_norm",
    "input_context_norm": "attention.context_norm",
    "post_attention_layernorm": "mlp_norm",
    **{f"mlp.{part}_proj": f"mlp.{part}" for part in ("gate", "up", "down")},
}


def rename_idefics2(config: Idefics2Config) -> Rename:
    """`transformers`' names → ours."""
    theirs, ours = "model.connector.perceiver_resampler", "encoder.resampler"
    table = _shared_names(config)
    for part in ("gate", "up", "down"):
        name = f"model.connector.modality_projection.{part}_proj"
        table[name] = f"encoder.projection.{part}"
    table |= {
        f"{theirs}.latents": f"{ours}.latents",
        f"{theirs}.norm": f"{ours}.norm",
        **{f"{theirs}.layers.*.{n}": f"{ours}.blocks.*.{o}" for n, o in _RESAMPLER.items()},
        **projections(
            f"{theirs}.layers.*.self_attn",
            f"{ours}.blocks.*.attention",
            "q_proj k_proj v_proj o_proj",
        ),
    }
    return Rename(table)


IDEFICS2 = image_language_model(
    "idefics2",
    read_idefics2,
    Idefics2,
    rename_idefics2,
    image_size=lambda config: (config.image, config.image),
    ends=llama.ENDS,
)
