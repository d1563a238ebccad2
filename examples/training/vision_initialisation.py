"""Initialises a CLIP vision tower from a captioner's ViT.

Learning shapes and positions takes most of the training of either example. CLIP's encoder differs
from a ViT of the same width by the statistics of its pixels, a first norm and one bias less.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import CLIPModel, VisionEncoderDecoderModel
from transformers.image_processing_utils import BaseImageProcessor

_NORMS = {"layernorm_before": "layer_norm1", "layernorm_after": "layer_norm2"}  # of ViT → of CLIP
_SPREAD = 0.02  # of newly initialised weights


@torch.no_grad()
def initialise_vision_tower(
    clip: CLIPModel,
    to_clip: BaseImageProcessor,
    captioner: VisionEncoderDecoderModel,
    to_captioner: BaseImageProcessor,
) -> None:
    """Copies the captioner's encoder into the first layers of the vision tower, in place.

    The layers above it and the projection are initialised anew: they use the class token, which the
    captioner hardly uses.
    """
    tower: Any = clip.vision_model
    vit: Any = captioner.encoder
    patches = vit.embeddings.patch_embeddings.projection  # weight (D, 3, patch, patch)
    own_mean, own_deviation = _statistics(to_clip)
    mean, deviation = _statistics(to_captioner)
    tower.embeddings.patch_embedding.weight.copy_(patches.weight * own_deviation / deviation)
    # constant terms are folded into the position embeddings
    shift = (patches.weight * (own_mean - mean) / deviation).sum((1, 2, 3)) + patches.bias
    positions = vit.embeddings.position_embeddings[0].clone()  # (1 + N, D), the class token first
    positions[1:] += shift
    tower.embeddings.class_embedding.copy_(vit.embeddings.cls_token[0, 0])
    tower.embeddings.position_embedding.weight.copy_(positions)
    for own, source in zip(tower.encoder.layers, vit.layers, strict=False):
        own.load_state_dict({_renamed(name): t for name, t in source.state_dict().items()})
    for module in (*tower.encoder.layers[len(vit.layers) :], clip.visual_projection):
        module.apply(_initialise)


@torch.no_grad()
def fit_first_norm(clip: CLIPModel, pixels: Tensor) -> None:
    """Sets the first norm of the vision tower so that it leaves tokens nearly unchanged.

    `pixels` (B, 3, side, side) is a sample of normalised pictures.
    """
    tower: Any = clip.vision_model
    tokens = tower.embeddings(pixels)  # (B, 1 + N, D)
    tower.pre_layrnorm.weight.fill_(tokens.std(-1).mean())
    tower.pre_layrnorm.bias.copy_(tokens.mean((0, 1, 2)))


def _statistics(processor: Any) -> tuple[Tensor, Tensor]:
    """Mean and deviation of its pixels, each (3, 1, 1)."""
    mean, deviation = processor.image_mean, processor.image_std
    return torch.tensor(mean).view(3, 1, 1), torch.tensor(deviation).view(3, 1, 1)


def _renamed(name: str) -> str:
    module, rest = name.split(".", 1)
    if module == "attention":
        return f"self_attn.{rest}".replace("o_proj", "out_proj")
    return f"{_NORMS.get(module, module)}.{rest}"


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=_SPREAD)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.LayerNorm):
        module.reset_parameters()
