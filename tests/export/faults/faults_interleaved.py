"""Mistakes that a port of Flamingo can make, one at a time; see `faults.py`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from export.decoder_graphs.interleaved import ImageCounter
from export.layers.attention.fused import MASKED_SCORE
from export.layers.attention.gated_cross import GatedCrossBlock, ImageAttention, ImageMask
from export.models.vision_language.perceiver_resampler import LatentAttention
from tests.export.faults.faults import Fault, change, replaced, swap_modules, swapped

_OF, _COUNT = ImageMask.of, ImageCounter.count


def _ungated(own: GatedCrossBlock, x: Tensor, images: Any, mask: ImageMask) -> Tensor:
    x = x + own.attention_gate * own.attention.read(own.attention_norm(x), images, mask)
    return x + own.mlp_gate * own.mlp(own.mlp_norm(x))


def _all_before(images: Tensor, positions: int, room: int) -> ImageMask:
    owner = torch.arange(room) // positions + 1
    chosen = images.reshape(images.shape[0], -1)[:, None, :, None]
    bias = torch.where(owner <= chosen, 0.0, MASKED_SCORE)
    return replace(_OF(images, positions, room), bias=bias)


def _open(images: Tensor, positions: int, room: int) -> ImageMask:
    mask = _OF(images, positions, room)
    return replace(mask, gate=torch.ones_like(mask.gate))


def _mask(of: Any) -> Fault:
    return replaced(ImageMask, "of", of)


def _endless(own: ImageCounter, *inputs: Tensor) -> tuple[Tensor, Tensor]:
    return _COUNT(replace(own, end_token=None), *inputs)


def _latents_alone(own: LatentAttention, context: Tensor, latents: Tensor) -> Tensor:
    return _LATENTS(own, context[:, :0], latents)


_LATENTS = LatentAttention.forward

FLAMINGO: dict[str, Fault] = {
    "gates are not squashed": replaced(GatedCrossBlock, "forward", _ungated),
    "all images before a token are read": _mask(_all_before),
    "the next image is read": _mask(lambda images, *sizes: _OF(images + (images > 0), *sizes)),
    "tokens before the first image read it": _mask(
        lambda images, *sizes: _OF(images.clamp(min=1), *sizes)
    ),
    "tokens without an image read all": _mask(_open),
    "an end token is passed over": replaced(ImageCounter, "count", _endless),
    "gates of both sub-layers are swapped": swapped(
        "decoder.gated_blocks.0", "attention_gate", "mlp_gate"
    ),
    "norms of both sub-layers are swapped": swapped(
        "decoder.gated_blocks.1", "attention_norm", "mlp_norm"
    ),
    "queries of images are not normalised": change(
        lambda net: setattr(net.decoder.gated_blocks[0].attention, "query_norm", nn.Identity())
    ),
    "keys and values of images are swapped": replaced(
        ImageAttention, "project_kv", lambda own, source: _PROJECT(own, source)[::-1]
    ),
    "added tokens are the last of the vocabulary": change(
        lambda net: net.decoder.added_tokens.weight.copy_(net.decoder.tokens.weight[-4:])
    ),
    "latents do not read the image": replaced(LatentAttention, "forward", _latents_alone),
    "norms of image and latents are swapped": change(
        lambda net: swap_modules(
            net.encoder.resampler.blocks[0].attention, "context_norm", "latents_norm"
        )
    ),
    "the resampler's last norm is missing": change(
        lambda net: setattr(net.encoder.resampler, "norm", nn.Identity())
    ),
}
_PROJECT = ImageAttention.project_kv

FAULTS: dict[tuple[str, str], dict[str, Fault]] = {("idefics", "odd"): FLAMINGO}
"""(architecture, configuration of its twin) → title → fault."""
