"""Initialises a Perceiver that reads pictures from a ViT.

A layer between latents has the parts of a ViT's layer, so what a ViT learnt about patches can be
taken over. What remains to be learnt is to read the pixels: each latent begins as the embedding of
a patch's place, and the heads of the layer that reads begin with their attention on the patch and
around it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PerceiverForImageClassificationConvProcessing, ViTForImageClassification

_CHANNELS = 64  # of the convolution, in front of an input's position
_BANDS = 64  # frequencies of the position's Fourier features, an axis
_RESOLUTION = 56  # twice the highest frequency
_CHOSEN = (0, 4, 10)  # of the frequencies, those that a head compares
_SHARPNESS = 3.4, 1.7  # of queries and keys: their product scales a head's scores
_CLASS_SCORE = 8.0  # of the class token's latent, behind the last layer; others have about 0
_NAMES = {
    "attention.self.layernorm1": "layernorm_before",
    "attention.self.query": "attention.q_proj",
    "attention.self.key": "attention.k_proj",
    "attention.self.value": "attention.v_proj",
    "attention.output.dense": "attention.o_proj",
    "layernorm": "layernorm_after",
    "mlp.dense1": "mlp.fc1",
    "mlp.dense2": "mlp.fc2",
}  # of a layer between latents → of a ViT's


@torch.no_grad()
def initialise_from_vit(
    model: PerceiverForImageClassificationConvProcessing,
    vit: ViTForImageClassification,
    layers: Sequence[int],
    pixels: Tensor,
) -> None:
    """Sets all but the convolution, in place.

    Args:
        model: With a latent for each token of the ViT, of its width, with as many heads and the
            same classes; twice as many inputs a side as the ViT has patches, less one.
        layers: Numbers of the ViT's layers, one for each layer between latents.
        pixels: (B, 3, side, side), normalised: a sample.
    """
    perceiver: Any = model.perceiver
    for own, number in zip(perceiver.encoder.self_attends, layers, strict=True):
        for ours, theirs in _NAMES.items():
            part: Any = vit.vit.layers[number].get_submodule(theirs)
            own.get_submodule(ours).load_state_dict(part.state_dict())
    _initialise_reading(perceiver, vit)
    _initialise_output(perceiver.decoder.decoder, vit, pixels)


def _initialise_reading(perceiver: Any, vit: Any) -> None:
    """Latents are the embeddings of places; queries and keys compare places."""
    embeddings, cross = vit.vit.embeddings, perceiver.encoder.cross_attention
    latents = embeddings.position_embeddings[0].clone()  # (1 + N, D), the class token first
    latents[0] += embeddings.cls_token[0, 0]
    latents[1:] += embeddings.patch_embeddings.projection.bias
    perceiver.embeddings.latents.copy_(latents)
    attention = cross.attention.self
    around = [*product((0, -1, 1), repeat=2)][: attention.num_heads]  # inputs, of either axis
    side = math.isqrt(len(latents) - 1)
    axis = torch.linspace(-1, 1, side)
    centres, step = torch.cartesian_prod(axis, axis), 1 / (side - 1)
    queries = [_waves(centres + step * torch.tensor(shift)) for shift in around]
    wanted = torch.zeros(len(latents), attention.qk_channels)
    wanted[1:] = _SHARPNESS[0] * torch.cat(queries, dim=-1)
    normed = nn.functional.layer_norm(latents, latents.shape[1:])
    fit(attention.query, normed, wanted)
    attention.key.weight.zero_()
    for row in range(attention.qk_channels):
        attention.key.weight[row, _columns()[row % len(_columns())]] = _SHARPNESS[1]


def _waves(places: Tensor) -> Tensor:
    """(N, 2) in [-1, 1] → (N, F): sines and cosines, as inputs have them in `_columns()`."""
    chosen = torch.linspace(1, _RESOLUTION / 2, _BANDS)[list(_CHOSEN)]
    angles = math.pi * (places[:, :, None] * chosen).flatten(1)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def _columns() -> list[int]:
    """Places of the same features in an input; its position itself is in front of them."""
    first = _CHANNELS + 2
    return [
        first + wave * 2 * _BANDS + axis * _BANDS + band
        for wave in (0, 1)
        for axis in (0, 1)
        for band in _CHOSEN
    ]


def _initialise_output(decoder: Any, vit: Any, pixels: Tensor) -> None:
    """The output query reads the class token's latent, and the ViT's classifier is behind it."""
    layer = decoder.decoding_cross_attention
    attention = layer.attention.self
    attention.layernorm2.load_state_dict(vit.vit.layernorm.state_dict())
    decoder.final_layer.load_state_dict(vit.classifier.state_dict())
    decoder.output_position_encodings.position_embeddings.zero_()
    for identity in (attention.value, layer.attention.output.dense):
        nn.init.eye_(identity.weight)
    for empty in (attention.query, attention.key, layer.mlp.dense2):
        empty.weight.zero_()
    hidden = vit.vit(pixel_values=pixels).last_hidden_state
    direction = hidden[:, 0].mean(0) - hidden[:, 1:].mean((0, 1))
    attention.key.weight[0] = direction / direction.square().sum()
    attention.query.bias[0] = _CLASS_SCORE * math.sqrt(attention.qk_channels_per_head)


def fit(linear: nn.Linear, inputs: Tensor, outputs: Tensor) -> None:
    """The least weights of a linear layer that maps the rows of one to those of the other."""
    extended = torch.cat([inputs, torch.ones(len(inputs), 1)], dim=-1)
    solution = torch.linalg.lstsq(extended, outputs, driver="gelsd").solution
    linear.weight.copy_(solution[:-1].T)
    linear.bias.copy_(solution[-1])
