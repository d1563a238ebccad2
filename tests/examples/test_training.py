"""Averaged and initialised weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from transformers import (
    CLIPConfig,
    CLIPModel,
    GPT2Config,
    VisionEncoderDecoderConfig,
    VisionEncoderDecoderModel,
    ViTConfig,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from examples.training.average import averaged
from examples.training.vision_initialisation import fit_first_norm, initialise_vision_tower


def test_every_tensor_is_the_mean_in_the_later_dtype() -> None:
    mean = averaged({"w": torch.tensor([1.0, 3.0])}, {"w": torch.tensor([3.0, 7.0]).half()})
    assert mean["w"].tolist() == [2.0, 5.0]
    assert mean["w"].dtype is torch.float16


def test_checkpoints_of_different_networks_are_refused() -> None:
    with pytest.raises(ValueError, match="different tensors"):
        averaged({"w": torch.zeros(2)}, {"w": torch.zeros(3)})


SIDE = 16
TOWER = {"image_size": SIDE, "patch_size": 8, "hidden_size": 16, "intermediate_size": 24}


def randomised(model: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) / 4)
    return model.eval()


def test_tower_computes_the_features_of_the_captioner() -> None:
    vit = ViTConfig(**TOWER, num_hidden_layers=2, num_attention_heads=2)
    text = GPT2Config(vocab_size=9, n_positions=8, n_embd=8, n_layer=1, n_head=1)
    config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(vit, text)
    captioner = randomised(VisionEncoderDecoderModel(config))
    vision = {**TOWER, "num_hidden_layers": 3, "num_attention_heads": 2, "hidden_act": "gelu"}
    clip = randomised(CLIPModel(CLIPConfig(vision_config=vision)))
    clip.vision_model.config.layer_norm_eps = vit.layer_norm_eps
    to_clip = CLIPImageProcessorPil(
        size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}
    )
    to_vit = ViTImageProcessorPil(size={"height": SIDE, "width": SIDE})
    initialise_vision_tower(clip, to_clip, captioner, to_vit)

    noise = np.random.default_rng(3).integers(0, 256, (4, SIDE, SIDE, 3), np.uint8)
    pictures = [Image.fromarray(pixels) for pixels in noise]
    own = to_clip(pictures, return_tensors="pt").pixel_values
    theirs = to_vit(pictures, return_tensors="pt").pixel_values
    tower, encoder = clip.vision_model, captioner.encoder
    with torch.no_grad():
        tokens = encoder.embeddings(theirs)
        assert torch.allclose(tower.embeddings(own), tokens, atol=1e-4)
        for layer, borrowed in zip(tower.encoder.layers, encoder.layers, strict=False):
            seen, expected = layer(tokens, attention_mask=None), borrowed(tokens)
            seen, expected = (x[0] if isinstance(x, tuple) else x for x in (seen, expected))
            assert torch.allclose(seen, expected, atol=1e-3)
        fit_first_norm(clip, own)
        assert torch.isclose(tower.pre_layrnorm(tokens).std(), tokens.std(), rtol=0.2)
