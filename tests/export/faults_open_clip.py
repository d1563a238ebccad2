"""Mistakes that a port of CLIP can make, one at a time; see `faults.py`."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional

from export.models import clip
from tests.export.faults import Fault, change, swap_modules


def _both(network: Any) -> list[Any]:
    return [*network.image.blocks, *network.text.blocks]


def _class_token_last(tower: clip.VisionTransformer, pixels: Tensor) -> Tensor:
    patches = tower.patches(tower.pixel_norm(pixels))
    token = tower.class_token.expand(patches.shape[0], 1, -1)
    x = tower.first_norm(torch.cat([patches, token], dim=1) + tower.positions)
    for block in tower.blocks:
        x = block(x)
    return x.flip(1)


def _averaged(tower: clip.ImageTower, pixels: Tensor) -> Tensor:
    pooled = tower.norm(tower.hidden(pixels)).mean(dim=1)
    return functional.normalize(tower.projection(pooled), dim=-1)


def _last_position(tower: clip.TextTower, token_ids: Tensor, lengths: Tensor) -> Tensor:
    return torch.full_like(lengths, token_ids.shape[1] - 1).long()


VIT: dict[str, Fault] = {
    "GELU is exact": change(
        lambda net: [setattr(block.mlp, "activation", functional.gelu) for block in _both(net)]
    ),
    "the norm in front of the blocks is missing": change(
        lambda net: setattr(net.image, "first_norm", nn.Identity())
    ),
    "the norm behind the blocks is missing": change(
        lambda net: setattr(net.image, "norm", nn.Identity())
    ),
    "norms in front of and behind the blocks are swapped": change(
        lambda net: swap_modules(net.image, "first_norm", "norm")
    ),
    "the class token comes behind the patches": lambda net: patch.object(
        clip.VisionTransformer, "hidden", _class_token_last
    ),
    "patches are averaged": lambda net: patch.object(clip.ImageTower, "forward", _averaged),
    "positions of the image are forgotten": change(lambda net: net.image.positions.zero_()),
    "keys and queries of an image block are swapped": change(
        lambda net: swap_modules(net.image.blocks[0].attention, "query", "key")
    ),
    "texts are not causal": change(
        lambda net: [setattr(block.attention, "is_causal", False) for block in net.text.blocks]
    ),
    "the padded end is pooled": lambda net: patch.object(clip.TextTower, "_end", _last_position),
    "an image has one head": change(
        lambda net: setattr(net.image.blocks[0].attention, "heads", clip.Heads(36, 1))
    ),
}

FAULTS: dict[tuple[str, str], dict[str, Fault]] = {("open_clip", "odd"): VIT}
"""(architecture, configuration of its twin) → title → fault."""
