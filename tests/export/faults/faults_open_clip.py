"""Mistakes that a port of CLIP can make, one at a time; see `faults.py`."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from export.layers.attention.heads import Heads
from export.layers.images.convolutions import BatchNorm
from export.models.dual_encoders import bert_clip, clip, clip_resnet, groupvit
from export.models.vision import efficientnet
from tests.export.faults.faults import Fault, change, replaced, swapped


def _both(network: Any) -> list[Any]:
    return [*network.image.blocks, *network.text.blocks]


def _class_token_last(tower: clip.VisionTransformer, pixels: Tensor) -> Tensor:
    patches = tower.patches(tower.pixel_norm(pixels))
    token = tower.class_token.expand(patches.shape[0], 1, -1)
    x = tower.first_norm(torch.cat([patches, token], dim=1) + tower.positions)
    for block in tower.blocks[:-1]:
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
    "norms in front of and behind the blocks are swapped": swapped("image", "first_norm", "norm"),
    "the class token comes behind the patches": replaced(
        clip.VisionTransformer, "_earlier", _class_token_last
    ),
    "patches are averaged": replaced(clip.ImageTower, "forward", _averaged),
    "positions of the image are forgotten": change(lambda net: net.image.positions.zero_()),
    "keys and queries of an image block are swapped": swapped(
        "image.blocks.0.attention", "query", "key"
    ),
    "texts are not causal": change(
        lambda net: [setattr(block.attention, "is_causal", False) for block in net.text.blocks]
    ),
    "the padded end is pooled": replaced(clip.TextTower, "_end", _last_position),
    "an image has one head": change(
        lambda net: setattr(net.image.blocks[0].attention, "heads", Heads(36, 1))
    ),
}


METACLIP_2: dict[str, Fault] = {
    "the largest token ends a text": change(lambda net: setattr(net.text, "end_token", None)),
    "the last token represents a text": replaced(
        clip.TextTower, "_end", lambda own, token_ids, lengths: lengths.long() - 1
    ),
    **{title: VIT[title] for title in ("GELU is exact", "texts are not causal")},
}


def _token_pooled(place: Callable[[Tensor], Tensor]) -> Fault:
    """The text's vector is that of another token.

    Args:
        place: (B,) lengths → (B,) the token's index.
    """

    def forward(tower: bert_clip.TextTower, token_ids: Tensor, lengths: Tensor) -> Tensor:
        hidden = tower.encoder(token_ids, lengths)
        index = place(lengths.long())[:, None, None].expand(-1, 1, hidden.shape[-1])
        return functional.normalize(tower.project(hidden.gather(1, index).squeeze(1)), dim=-1)

    return replaced(bert_clip.TextTower, "forward", forward)


_BERT_CLIP: dict[str, Fault] = {
    "the last token represents a text": _token_pooled(lambda lengths: lengths - 1),
    "texts are causal": change(
        lambda net: [
            setattr(block.attention, "is_causal", True) for block in net.text.encoder.blocks
        ]
    ),
    "norms of a text are in front": change(
        lambda net: [setattr(block, "is_norm_first", True) for block in net.text.encoder.blocks]
    ),
    "the segment's vector is forgotten": change(
        lambda net: net.text.encoder.segments.weight[0].zero_()
    ),
    "norms in front of and behind the image's blocks are swapped": VIT[
        "norms in front of and behind the blocks are swapped"
    ],
}
CHINESE_CLIP = _BERT_CLIP | {
    "positions are counted behind the padding token": change(
        lambda net: setattr(net.text.encoder, "pad_token", 3)
    ),
    "the image has the text's activation": change(
        lambda net: [setattr(block.mlp, "activation", torch.relu) for block in net.image.blocks]
    ),
}
ALTCLIP = _BERT_CLIP | {
    "positions are counted from 0": change(
        lambda net: setattr(net.text.encoder, "pad_token", None)
    ),
    "the padding token is XLM-R's": change(lambda net: setattr(net.text.encoder, "pad_token", 1)),
    "the norm in front of the teacher's vector is missing": change(
        lambda net: setattr(net.text, "norm", nn.Identity())
    ),
    "the teacher's vector has no bias": change(lambda net: net.text.to_teacher.bias.zero_()),
}


def _pad_above(x: Tensor, sides: tuple[int, ...]) -> Tensor:
    return functional.pad(x, sides[::-1])


def _each_block(action: Callable[[Any], object]) -> Fault:
    return change(lambda net: [action(block) for block in net.image.network.blocks])


ALIGN: dict[str, Fault] = {
    "images are padded above instead of below": replaced(
        efficientnet, "functional", SimpleNamespace(pad=_pad_above)
    ),
    "strides are padded evenly": _each_block(
        lambda block: setattr(block, "padding", (block.padding[1],) * 4)
    ),
    "channels are not weighed by the image": _each_block(lambda block: block.weigh.weight.zero_()),
    "no block has a residual": _each_block(lambda block: setattr(block, "is_residual", False)),
    "another epsilon in the norms": change(
        lambda net: [
            setattr(each, "eps", 1e-5)
            for each in net.image.modules()
            if isinstance(each, BatchNorm)
        ]
    ),
    "the text's projection has no bias": change(lambda net: net.text.projection.bias.zero_()),
}


def _softly(owner: groupvit.Assignment, groups: Tensor, patches: Tensor) -> Tensor:
    weights = (owner.query(groups) @ owner.key(patches).transpose(1, 2)).softmax(dim=1)
    return weights / (weights.sum(dim=-1, keepdim=True) + owner.epsilon)


def _each_assignment(action: Callable[[Any], object]) -> Fault:
    return change(lambda net: [action(stage.assignment) for stage in net.image.stages])


GROUPVIT: dict[str, Fault] = {
    "patches are shared among groups": replaced(groupvit.Assignment, "_assign", _softly),
    "a group's mean has another epsilon": _each_assignment(
        lambda own: setattr(own, "epsilon", 1.0)
    ),
    "groups and tokens are one norm's": _each_assignment(
        lambda own: setattr(own, "group_norm", own.token_norm)
    ),
    "groups do not attend to patches": _each_assignment(
        lambda own: own.attention.out.weight.zero_()
    ),
    "keys and values of an assignment are swapped": swapped(
        "image.stages.0.assignment", "key", "value"
    ),
    "tokens of the stage in front are forgotten": change(
        lambda net: setattr(net.image.stages[1], "past", None)
    ),
    "the last groups have no norm": change(lambda net: setattr(net.image, "norm", nn.Identity())),
    "a projection has no bias": change(lambda net: net.text.projection.up.linear.bias.zero_()),
    "a projection has no norm": change(
        lambda net: setattr(net.image.projection.up, "norm", nn.Identity())
    ),
    "texts are not causal": VIT["texts are not causal"],
}


def _without_mean_token(pooling: clip_resnet.AttentionPooling, cells: Tensor) -> Tensor:
    mean = cells.mean(dim=1, keepdim=True)
    query = mean + pooling.positions[:1]
    kept = cells + pooling.positions[1:]
    return pooling.attention(query, pooling.attention.project_kv(kept)).squeeze(1)


def _first_cell_queries(pooling: clip_resnet.AttentionPooling, cells: Tensor) -> Tensor:
    x = torch.cat([cells.mean(dim=1, keepdim=True), cells], dim=1) + pooling.positions
    return pooling.attention(x[:, 1:2], pooling.attention.project_kv(x)).squeeze(1)


def _averaged_cells(pooling: clip_resnet.AttentionPooling, cells: Tensor) -> Tensor:
    return pooling.attention.out(cells.mean(dim=1))


def _every_other_cell(x: Tensor, stride: int) -> Tensor:
    kept = x[..., ::stride, ::stride]
    return kept[..., : x.shape[-2] // stride, : x.shape[-1] // stride]


def _largest_cell(x: Tensor, stride: int) -> Tensor:
    return x if stride == 1 else functional.max_pool2d(x, stride)


def _in_the_stem(other: Callable[[Tensor, int], Tensor]) -> Fault:
    def pooled(x: Tensor, stride: int) -> Tensor:
        return (other if x.shape[1] == 4 else _POOLED)(x, stride)

    return replaced(clip_resnet, "downsample", pooled)


def _shortcut_skips(block: clip_resnet.Bottleneck, x: Tensor) -> Tensor:
    y = block.middle(block.narrow(x).relu()).relu()
    skipped = _every_other_cell(x, block.stride)
    shortcut = x if block.shortcut is None else block.shortcut(skipped)
    return (block.widen(_POOLED(y, block.stride)) + shortcut).relu()


def _strided_in_the_middle(block: clip_resnet.Bottleneck, x: Tensor) -> Tensor:
    y = _POOLED(block.narrow(x).relu(), block.stride)
    y = block.widen(block.middle(y).relu())
    shortcut = x if block.shortcut is None else block.shortcut(_POOLED(x, block.stride))
    return (y + shortcut).relu()


def _without_last_relu(block: clip_resnet.Bottleneck, x: Tensor) -> Tensor:
    y = block.middle(block.narrow(x).relu()).relu()
    shortcut = x if block.shortcut is None else block.shortcut(_POOLED(x, block.stride))
    return block.widen(_POOLED(y, block.stride)) + shortcut


_POOLED = clip_resnet.downsample

RESNET: dict[str, Fault] = {
    "GELU of texts is exact": change(
        lambda net: [setattr(block.mlp, "activation", functional.gelu) for block in net.text.blocks]
    ),
    "positions of the pooling are dropped": change(lambda net: net.image.pooling.positions.zero_()),
    "the first cell is the query": replaced(
        clip_resnet.AttentionPooling, "forward", _first_cell_queries
    ),
    "the mean is no key": replaced(clip_resnet.AttentionPooling, "forward", _without_mean_token),
    "cells are averaged": replaced(clip_resnet.AttentionPooling, "forward", _averaged_cells),
    "keys and queries of the pooling are swapped": swapped(
        "image.pooling.attention", "query", "key"
    ),
    "strides skip cells": replaced(clip_resnet, "downsample", _every_other_cell),
    "the stem's pool skips cells": _in_the_stem(_every_other_cell),
    "the stem's pool takes the largest cell": _in_the_stem(_largest_cell),
    "shortcuts skip cells": replaced(clip_resnet.Bottleneck, "forward", _shortcut_skips),
    "residuals pool in front of the 3 x 3 convolution": replaced(
        clip_resnet.Bottleneck, "forward", _strided_in_the_middle
    ),
    "blocks end without ReLU": replaced(clip_resnet.Bottleneck, "forward", _without_last_relu),
    "an identity stands for the first shortcut's norm": change(
        lambda net: setattr(net.image.stage1[0].shortcut, "norm", nn.Identity())
    ),
}

FAULTS: dict[tuple[str, str], dict[str, Fault]] = {
    ("metaclip_2", "odd"): METACLIP_2,
    ("chinese_clip", "odd"): CHINESE_CLIP,
    ("altclip", "odd"): ALTCLIP,
    ("align", "odd"): ALIGN,
    ("groupvit", "odd"): GROUPVIT,
    ("open_clip", "odd"): RESNET,
    ("open_clip", "vit"): VIT,
}
"""(architecture, configuration of its twin) → title → fault."""
