"""Initialises a Perceiver that reads bytes, so that each latent begins at a place of the text.

The heads of the layer that reads begin with their attention on one byte each, beside one another;
those of the layer that decodes with theirs on the latents around the masked byte. Where latents
begin at random, most of a short training goes by until they read different bytes.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PerceiverForMaskedLM

from examples.history.perceiver.initialisation import fit

SPACING = 3
"""Bytes between the places of neighbouring latents."""
_WAVES = (2.6, 4.3, 7.0, 12.0, 26.0, 64.0)  # lengths in bytes, of which places are told apart
_COARSE = 2  # of the waves, the first that is longer than the spacing of latents
_LONGEST_WAVE = 256.0  # in a latent
_DECODED = (0, -3, 3, 0, -6, 6, -9, 9)  # bytes from a masked one to where the heads decode
_READING, _DECODING = 2.0, 1.5  # scores of a place beside those of places far from it


@torch.no_grad()
def initialise_places(model: PerceiverForMaskedLM) -> None:
    """Sets positions, latents, queries and keys of the two layers that cross arrays, in place."""
    perceiver: Any = model.perceiver
    inputs, cross = perceiver.input_preprocessor, perceiver.encoder.cross_attention.attention.self
    count, width = perceiver.embeddings.latents.shape
    positions = len(inputs.position_embeddings.weight)
    waves = torch.tensor(_WAVES)
    circles = _circles(torch.arange(positions), waves)
    features = circles.shape[1]  # the rest of an input is its byte's
    inputs.position_embeddings.weight[:, :features] = circles
    inputs.position_embeddings.weight[:, features:].normal_(0, 0.05)
    inputs.embeddings.weight.normal_(0, 0.5)
    inputs.embeddings.weight[:, :features] = 0

    places = 2 + SPACING * torch.arange(count)
    lengths = torch.logspace(math.log10(_WAVES[0]), math.log10(_LONGEST_WAVE), width // 3)
    latents = torch.randn(count, width) * 0.3
    latents[:, : 2 * len(lengths)] = _circles(places, lengths)
    perceiver.embeddings.latents.copy_(latents)
    normed = nn.functional.layer_norm(latents, latents.shape[1:])

    sharp = math.sqrt(_READING * math.sqrt(features))
    shifts = range(-cross.num_heads // 2 + 1, cross.num_heads // 2 + 1)
    fit(cross.query, normed, sharp * torch.cat([_circles(places + at, waves) for at in shifts], 1))
    cross.key.weight.zero_()
    for head in cross.key.weight.split(features):
        head[:, :features].copy_(sharp * torch.eye(features))
    cross.value.weight.normal_(0, 0.15)
    _initialise_decoding(perceiver.decoder, circles, normed, places)


def _initialise_decoding(decoder: Any, circles: Tensor, latents: Tensor, places: Tensor) -> None:
    """Queries at the positions of bytes, keys at the places of latents."""
    queries = decoder.output_position_encodings.position_embeddings
    queries.normal_(0, 0.3)
    queries[:, : circles.shape[1]] = circles
    attention = decoder.decoding_cross_attention.attention.self
    waves = torch.tensor(_WAVES[_COARSE:])
    sharp = math.sqrt(_DECODING * math.sqrt(attention.qk_channels_per_head))
    keys = nn.Linear(latents.shape[1], 2 * len(waves))
    fit(keys, latents, sharp * _circles(places, waves))
    for part in (attention.query, attention.key):
        part.weight.normal_(0, 0.02)
        part.bias.zero_()
    for head, shift in enumerate(_DECODED):
        rows = slice(head * attention.qk_channels_per_head, None)
        attention.key.weight[rows][: 2 * len(waves)] = keys.weight
        attention.key.bias[rows][: 2 * len(waves)] = keys.bias
        attention.query.weight[rows][: 2 * len(waves), : circles.shape[1]] = sharp * _shifted(shift)


def _circles(places: Tensor, waves: Tensor) -> Tensor:
    """(N,) → (N, 2 W): sines and cosines of places, in bytes."""
    angles = 2 * math.pi * places[:, None] / waves
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def _shifted(distance: int) -> Tensor:
    """(2 C, 2 W): maps the circles of a place to the coarse ones of another place."""
    angles = 2 * math.pi * distance / torch.tensor(_WAVES[_COARSE:])
    rows, count = torch.arange(len(angles)), len(_WAVES)
    turned = torch.zeros(2 * len(angles), 2 * count)
    sine, cosine = rows + _COARSE, rows + _COARSE + count
    turned[rows, sine], turned[rows, cosine] = angles.cos(), angles.sin()
    turned[rows + len(rows), cosine], turned[rows + len(rows), sine] = angles.cos(), -angles.sin()
    return turned
