"""PaliGemma: SigLIP's patches and a question as the prefix of Gemma's answer.

Reports: Beyer et al. 2024, "PaliGemma: A versatile 3B VLM for transfer", §3.1 and figure 2 (arXiv
2407.07726): one linear layer projects the patches; image and prompt attend to each other in both
directions, the answer is causal. Steiner et al. 2024, "PaliGemma 2" (arXiv 2412.03555): the same
over Gemma 2.
Checkpoints: `model_type: paligemma` (`google/paligemma-*`, `google/paligemma2-*`).

Legend: B images, N patches, E width of the image tower, D width.

Differences from `transformers`: an image's vectors are computed once, by `admit`; a prompt may hold
no image; positions are counted from 0 and not from 1, which rotations do not see; pixels come as
uint8.

Decision D104.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from export.architecture import Architecture, LimitedByText
from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Names, Rename
from export.decoder_graphs.language_model import (
    DecoderConfig,
    ImageLanguageModel,
    image_language_model,
    language_names,
)
from export.layers.blocks import BlockConfig
from export.layers.images.vision import patch_count
from export.models.decoders import gemma
from export.models.dual_encoders import siglip
from export.tokenizer.prompt_images import prefix_images

# ---------------------------------------------------------------------------------------- config

_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 257152,
    "hidden_size": 2048,
    "intermediate_size": 16384,
    "num_hidden_layers": 18,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
}
"""What `transformers` takes for Gemma 1 where there is no `text_config`, as in published files."""


LANGUAGE_MODELS: Mapping[str, Architecture] = {"gemma": gemma.GEMMA, "gemma2": gemma.GEMMA2}
"""`model_type` of `text_config` → the decoder."""


@dataclass(frozen=True, kw_only=True)
class Config(LimitedByText):
    """Both halves."""

    tower: BlockConfig = key()
    image: tuple[int, int] = key("image_size", 224)
    patch: tuple[int, int] = key("patch_size", 14)
    language: Architecture
    text: DecoderConfig
    image_token: int

    @property
    def tokens(self) -> int:
        """N."""
        return patch_count(self.image, self.patch)


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; defaults are `transformers`' own.

    Raises:
        CheckpointError: another language model, causal prompts, or a token that it lacks.
    """
    reader = ConfigReader(values)
    reader.refuse_heads("ForConditionalGeneration")
    vision = reader.section("vision_config", siglip.DEFAULTS)
    vision.refuse_unless(num_channels=3, model_type="siglip_vision_model")
    section = reader.section("text_config")
    kind = section.choice("model_type", LANGUAGE_MODELS, "gemma")
    given = section.given
    if given.pop("use_bidirectional_attention", True) is not True:
        section.refuse_unless(use_bidirectional_attention=True)
    language = LANGUAGE_MODELS[kind]
    given |= {"model_type": kind, "tie_word_embeddings": reader.flag("tie_word_embeddings", True)}
    text = language.read_config({**_DEFAULTS, **given})
    reader.refuse_unless(projection_dim=text.width)
    return vision.read(
        Config,
        language=language,
        text=replace(text, layers=tuple(replace(each, is_prefix_lm=True) for each in text.layers)),
        image_token=reader.token("image_token_index", 256000, text.vocabulary_size),
    )


# --------------------------------------------------------------------------------------- network


class ImageEncoder(nn.Module):
    """Patches of SigLIP's tower, projected."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.vit = siglip.VisionTransformer(config.tower, config.image, config.patch)
        self.projection = nn.Linear(config.tower.width, config.text.width)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → (B, N, D)."""
        return self.projection(self.vit.norm(self.vit.layer_outputs(pixels)[-1]))


class PaliGemma(ImageLanguageModel):
    """Image encoder and language model."""

    def __init__(self, config: Config) -> None:
        decoder = config.language.build(config.text).get_submodule("decoder")
        super().__init__(config, ImageEncoder(config), decoder)


# ----------------------------------------------------------------------------------------- names


def rename(config: Config) -> Rename:
    """`transformers`' names → ours: those of published files, and of newer versions."""
    table: Names = {}
    for prefix in ("", "model."):
        for place in ("vision_tower.vision_model", "vision_tower"):
            table |= siglip.vision_names(f"{prefix}{place}", "encoder.vit")
        table[f"{prefix}multi_modal_projector.linear"] = "encoder.projection"
    language = config.language.rename(config.text)
    return Rename(table | language_names(language.table))


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = image_language_model(
    "paligemma",
    read_config,
    PaliGemma,
    rename,
    image_size=lambda config: config.image,
    ends=gemma.ENDS,
    tasks={"caption": prefix_images, "generate": prefix_images},
)
