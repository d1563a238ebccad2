"""LLaVA: a language model that reads the patches of images as tokens.

Papers: Liu et al. 2023, "Visual Instruction Tuning", §4.1 (arXiv 2304.08485); Liu et al. 2023,
"Improved Baselines with Visual Instruction Tuning", §3 (arXiv 2310.03744): two linear layers
project the patches of an image tower to the language model's width.
Checkpoints: `model_type: llava` (`llava-hf/llava-1.5-7b-hf`, `llava-hf/bakLlava-v1-hf`,
`llava-hf/llava-interleave-qwen-0.5b-hf`) with an image tower of `TOWERS` and a language model of
`LANGUAGE_MODELS` (`llava_config.py`).

Legend: B images, N patches, L tokens of an image, E width of the image tower, D width.

Differences from `transformers`: an image's vectors are computed once, by `admit`; blocks of the
image tower whose output is not read are left out; pixels come as uint8.

Decision D104.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from export.config.weight_names import Entry, Rename
from export.decoder_graphs.image_language_model import (
    ImageLanguageModel,
    image_language_model,
    language_names,
)
from export.layers.activation import activation
from export.models.decoders import llama
from export.models.dual_encoders import clip
from export.models.vision_language.llava_config import Config, ImageConfig, read_config

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

ARCHITECTURE = image_language_model(
    "llava",
    read_config,
    Llava,
    rename,
    image_size=lambda config: config.image.image,
    ends=llama.ENDS,
)
