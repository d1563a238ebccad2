"""Mistakes that a port of an image encoder can make, one at a time; see `faults.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from export.layers.attention.attention import SelfAttention
from export.layers.attention.windows import DistanceAttention, WindowAttention, pad_grid
from export.layers.images.convolutions import BatchNorm
from export.layers.images.vision import GridPositions
from export.models.vision import beit, segformer, swin, swinv2
from export.models.vision.convnext import Block, ResponseMLP, ResponseNorm
from export.models.vision.resnet import Residual
from export.models.vision.swin import PatchMerging
from export.models.vision.vit import LeadingTokens, Scaled, ViT
from tests.export.faults.faults import Fault, change, replaced


def _class_token_last(network: ViT, pixels: torch.Tensor) -> torch.Tensor:
    patches = network.patches(network.pixel_norm(pixels))
    leading = network.leading_tokens().expand(patches.shape[0], -1, -1)
    return torch.cat([patches, leading], dim=1) + network.positions()


def _aligned_corners(positions: GridPositions) -> torch.Tensor:
    front, patches = positions.table.split(
        [positions.leading, positions.table.shape[1] - positions.leading], dim=1
    )
    trained = patches.unflatten(1, positions.trained_grid).permute(0, 3, 1, 2)
    resized = functional.interpolate(trained, positions.grid, mode="bicubic", align_corners=True)
    return torch.cat([front, resized.permute(0, 2, 3, 1).flatten(1, 2)], dim=1)


def _rows_and_columns_swapped(positions: GridPositions) -> torch.Tensor:
    front, patches = (
        positions.table[:, : positions.leading],
        positions.table[:, positions.leading :],
    )
    trained = patches.unflatten(1, positions.trained_grid).permute(0, 3, 2, 1)
    resized = functional.interpolate(trained, positions.grid, mode="bicubic")
    return torch.cat([front, resized.permute(0, 2, 3, 1).flatten(1, 2)], dim=1)


def _row_by_row(merging: PatchMerging, x: torch.Tensor) -> torch.Tensor:
    x = pad_grid(x, (2, 2))
    parts = [x[:, row::2, column::2] for row in (0, 1) for column in (0, 1)]
    return merging.reduction(merging.norm(torch.cat(parts, dim=-1)))


def _each(kind: type[nn.Module], action: Callable[[Any], object]) -> Fault:
    def change_all(network: nn.Module) -> None:
        for module in network.modules():
            if isinstance(module, kind):
                action(module)

    return change(change_all)


def _unmasked(windows: WindowAttention) -> None:
    windows.mask.zero_()


def _unshifted(windows: WindowAttention) -> None:
    windows.shift = 0


def _doubled(windows: WindowAttention) -> None:
    windows.shift *= 2


def _early_stride(layer: Residual) -> None:
    first, second, _ = layer.convolutions
    first.convolution.stride, second.convolution.stride = (
        second.convolution.stride,
        first.convolution.stride,
    )


_response = ResponseNorm.forward


def _without_residual(norm: ResponseNorm, x: torch.Tensor) -> torch.Tensor:
    return _response(norm, x) - x


FAULTS: dict[tuple[str, str], dict[str, Fault]] = {
    ("vit", "odd"): {
        "the class token is last": replaced(ViT, "embed", _class_token_last),
        "the class token has no position": change(
            lambda net: net.network.positions.table[:, 0].zero_()
        ),
        "a patch is read column by column": change(
            lambda net: net.network.patches.projection.weight.copy_(
                net.network.patches.projection.weight.flip(3)
            )
        ),
    },
    ("vit", "pooled"): {
        "the pooler has no activation": change(
            lambda net: setattr(net.pool, "activation", lambda x: x)
        ),
    },
    ("vit", "resized"): {
        "positions are interpolated with aligned corners": replaced(
            GridPositions, "_interpolate", _aligned_corners
        ),
        "rows and columns of positions are swapped": replaced(
            GridPositions, "_interpolate", _rows_and_columns_swapped
        ),
    },
    ("deit", "odd"): {
        "the teacher's head is missing": change(lambda net: setattr(net.head, "by_teacher", None)),
        "both heads read the class token": replaced(
            LeadingTokens, "forward", lambda tokens, vectors: vectors[:, [0, 0]]
        ),
        "the distillation token is the class token": change(
            lambda net: net.network.distillation_token.copy_(net.network.class_token)
        ),
    },
    ("dinov2", "odd"): {
        "layer scale of the MLP is dropped": _each(Scaled, lambda layer: layer.scale.fill_(1)),
        "layer scale of attention is dropped": change(
            lambda net: net.network.blocks[1].attention_scale.fill_(1)
        ),
        "gate and up of the SwiGLU are swapped": change(
            lambda net: net.network.blocks[0].mlp.layer.up.weight.copy_(
                net.network.blocks[0].mlp.layer.gate.weight
            )
        ),
        "positions are interpolated with antialiasing": change(
            lambda net: setattr(net.network.positions, "is_antialiased", True)
        ),
    },
    ("dinov2", "registers"): {
        "registers enter the mean of patches": change(lambda net: setattr(net.pool, "leading", 1)),
        "positions are interpolated without antialiasing": change(
            lambda net: setattr(net.network.positions, "is_antialiased", False)
        ),
    },
    ("levit", "odd"): {
        "biases are indexed backwards": _each(
            DistanceAttention, lambda layer: layer.index.copy_(layer.index.flip(1))
        ),
        "batch normalisation has another epsilon": _each(
            BatchNorm, lambda norm: setattr(norm, "eps", 1e-3)
        ),
        "the teacher's head is missing": change(lambda net: setattr(net.head, "by_teacher", None)),
        "the table of biases is reversed": _each(
            DistanceAttention, lambda layer: layer.biases.copy_(layer.biases.flip(1))
        ),
    },
    ("beit", "odd"): {
        "an image is its class token": change(
            lambda net: setattr(net.network, "is_averaged", False)
        ),
        "relative positions are ignored": _each(beit.Block, lambda block: block.table.zero_()),
        "the index of relative positions is transposed": _each(
            beit.Block, lambda block: block.index.copy_(block.index.T.clone())
        ),
    },
    ("segformer", "odd"): {
        "keys are not normalised": _each(
            segformer.Block, lambda block: setattr(block, "reduced_norm", nn.Identity())
        ),
        "inner channels are not convolved": _each(
            segformer.Block, lambda block: setattr(block, "depthwise", nn.Identity())
        ),
        "stages are not normalised": change(
            lambda net: net.network.norms.__setitem__(0, nn.Identity())
        ),
    },
    ("swinv2", "odd"): {
        "scores are not cosines": replaced(
            swinv2.CosineAttention, "forward", SelfAttention.forward
        ),
        "scales are not learned": _each(
            swinv2.CosineAttention, lambda layer: layer.logit_scale.zero_()
        ),
        "biases have no greatest value": replaced(swinv2, "GREATEST_BIAS", 1),
        "norms are in front": replaced(swinv2.Block, "forward", swin.Block.forward),
        "windows are not shifted": _each(WindowAttention, _unshifted),
    },
    ("resnet", "odd"): {
        "a residual ends in a ReLU": _each(
            Residual, lambda layer: setattr(layer, "activation", torch.relu)
        ),
        "strides are on the first convolutions": _each(Residual, _early_stride),
        "the stem's pool has no padding": change(
            lambda net: setattr(net.network.pool, "padding", 0)
        ),
        "batch normalisation has another epsilon": _each(
            BatchNorm, lambda norm: setattr(norm, "eps", 1e-3)
        ),
    },
    ("convnext", "odd"): {
        "layer scale is dropped": _each(Block, lambda block: block.scale.fill_(1)),
        "the mean is not normalised": change(
            lambda net: setattr(net.network, "norm", nn.Identity())
        ),
        "norms have the last one's epsilon": _each(
            Block, lambda block: setattr(block.norm, "eps", 1e-3)
        ),
    },
    ("convnextv2", "odd"): {
        "responses are not normalised": _each(
            ResponseMLP, lambda mlp: setattr(mlp, "norm", nn.Identity())
        ),
        "responses have no residual": replaced(ResponseNorm, "forward", _without_residual),
    },
    ("swin", "odd"): {
        "windows are not shifted": _each(WindowAttention, _unshifted),
        "windows are shifted too far": _each(WindowAttention, _doubled),
        "seams are not masked": _each(WindowAttention, _unmasked),
        "the relative index is transposed": _each(
            WindowAttention, lambda windows: windows.index.copy_(windows.index.T.clone())
        ),
        "patches are merged row by row": replaced(PatchMerging, "forward", _row_by_row),
    },
}
"""(architecture, configuration) → title → fault."""
