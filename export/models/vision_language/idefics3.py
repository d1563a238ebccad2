"""Idefics3 and SmolVLM: a language model that reads the tiles of images as few tokens.

Papers: Laurençon et al. 2024, "Building and better understanding vision-language models", §4
(arXiv 2408.12637); Marafioti et al. 2025, "SmolVLM", §2 (arXiv 2504.05299): an image is divided
into tiles of the tower's size and comes once more as a whole; s x s neighbouring patches are
concatenated (pixel shuffle) before one linear layer projects them.
Checkpoints: `model_type: idefics3` (`HuggingFaceM4/Idefics3-8B-Llama3`,
`HuggingFaceTB/SmolVLM-256M-Instruct`, `-500M-`) and `smolvlm` (`HuggingFaceTB/SmolVLM2-*`), whose
language model is one of `LANGUAGE_MODELS` (`llava.py`).

Legend: B tiles, N patches, s `scale_factor`, L = N / s² tokens of a tile, E width of the image
tower, D width.

Differences from `transformers`: a tile's vectors are computed once, by `admit`; pixels come as
uint8. A prepared tile has no padding, so there is no mask. Videos are not read.

Decision D104.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from export.architecture import Architecture, LimitedByText
from export.checkpoint.checkpoint import Checkpoint
from export.checkpoint.image_recipe import COMBINED_FILE
from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Entry, Rename
from export.decoder_graphs.language_model import (
    DecoderConfig,
    ImageLanguageModel,
    image_language_model,
)
from export.layers.blocks import BASE, BlockConfig
from export.layers.images.vision import patch_grid
from export.models.decoders import llama
from export.models.dual_encoders import siglip
from export.models.vision_language.llava import read_language
from export.tokenizer.prompt_images import AROUND, IMAGE_TOKEN
from export.tokenizer.tokenizer import special_text
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


def trained_rows(side: int) -> Tensor:
    """(side,) rows of the position table that rows of patches read.

    Idefics2 maps patches of images of any size to the table by their place in parts of the image
    (arXiv 2405.02246, §3.2), and rounds it in float32, so that rows of a whole tile read a
    neighbour's position for some `side`.
    """
    step = 1.0 / torch.tensor([side])
    places = (torch.arange(side, dtype=torch.float32) * step).clamp(max=1.0 - 1e-6)
    return torch.bucketize(places, torch.arange(1 / side, 1.0, 1 / side), right=True)


class ImageEncoder(nn.Module):
    """SigLIP's tower, pixel shuffle and projection."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.side, self.scale = config.side, config.scale
        size = (config.image, config.image)
        self.vit = siglip.VisionTransformer(config.tower, size, (config.patch, config.patch))
        rows = trained_rows(self.side)
        self.vit.order = (rows[:, None] * self.side + rows).flatten()
        self.projection = nn.Linear(
            config.tower.width * config.scale**2, config.text.width, bias=False
        )

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → (B, L, D)."""
        x = self.vit.norm(self.vit.layer_outputs(pixels)[-1])
        s, rows = self.scale, self.side // self.scale
        x = x.unflatten(1, (rows, s, rows, s)).transpose(2, 3)  # (B, rows, columns, s, s, E)
        return self.projection(x.flatten(3).flatten(1, 2))


class Idefics3(ImageLanguageModel):
    """Image encoder and language model."""

    def __init__(self, config: Config) -> None:
        decoder = config.language.build(config.text).get_submodule("decoder")
        super().__init__(config, ImageEncoder(config), decoder)

    def tile_texts(self, checkpoint: Checkpoint, place: str) -> dict[str, str]:
        """What the checkpoint's processor writes for an image, as fields of `TileTexts`.

        Raises:
            CheckpointError: the processor writes another number of tokens than a tile has.
        """
        processor = checkpoint.json(COMBINED_FILE)
        tokens = processor.get("image_seq_len", 169)  # its default
        if processor and tokens != self.config.tokens:
            raise CheckpointError(
                f"{COMBINED_FILE}: image_seq_len = {tokens}, but a tile has {self.config.tokens} "
                "tokens by config.json"
            )
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
    table: dict[str, Entry] = {
        **siglip.vision_names("model.vision_model", "encoder.vit"),
        "model.connector.modality_projection.proj": "encoder.projection",
    }
    for name, entry in config.language.rename(config.text).table.items():
        table[name.replace("model.", "model.text_model.", 1)] = entry
    return Rename(table)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = image_language_model(
    "idefics3",
    read_config,
    Idefics3,
    rename,
    image_size=lambda config: (config.image, config.image),
    ends=llama.ENDS,
)
