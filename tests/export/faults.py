"""Mistakes that a port of a model can make, one at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from export.layers import attention
from export.layers.attention import Heads, Rows, attend, within

Fault = Callable[[Any], Any]
"""Network → context in which its forward is wrong."""


class _Planted:
    """A change to the network itself; nothing to undo, the network is a copy."""

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


def _change(action: Callable[[Any], object]) -> Fault:
    def plant(network: Any) -> _Planted:
        with torch.no_grad():
            action(network)
        return _Planted()

    return plant


def _swap(first: Any, second: Any) -> None:
    held = first.clone()
    first.copy_(second)
    second.copy_(held)


def _swap_modules(owner: Any, first: str, second: str) -> None:
    held = getattr(owner, first)
    setattr(owner, first, getattr(owner, second))
    setattr(owner, second, held)


def _shifted(rows: Rows, new: int) -> torch.Tensor:
    start = rows.lengths.long() - rows.last  # one too far
    return start[:, None] + torch.arange(new)[None]


def _unmasked(query: Any, key: Any, value: Any, scale: float, visible: Any = None) -> Any:
    return attend(query, key, value, scale)


MARIAN: dict[str, Fault] = {
    "a bias is dropped": _change(lambda net: net.decoder.blocks[0].mlp.up.bias.zero_()),
    "two norms are swapped": _change(
        lambda net: _swap_modules(net.decoder.blocks[0], "attention_norm", "cross_norm")
    ),
    "query and key are swapped": _change(
        lambda net: _swap_modules(net.decoder.blocks[0].attention, "query", "key")
    ),
    "cross key and value are swapped": _change(
        lambda net: _swap_modules(net.decoder.blocks[0].cross, "key", "value")
    ),
    "another activation": _change(
        lambda net: setattr(net.decoder.blocks[1].mlp, "activation", nn.functional.gelu)
    ),
    "the embedding scale is forgotten": _change(
        lambda net: setattr(net.decoder.embedding, "scale", 1.0)
    ),
    "the logits bias is dropped": _change(lambda net: net.decoder.output_bias.zero_()),
    "sines and cosines are interleaved": _change(
        lambda net: net.encoder.embedding.positions.copy_(
            net.encoder.embedding.positions.unflatten(1, (2, -1)).mT.flatten(1)
        )
    ),
    "positions are off by one": lambda net: patch.object(
        Rows, "positions", lambda rows, new: _shifted(rows, new).clamp(max=rows.total - 1)
    ),
    "scores are not scaled": lambda net: patch.object(Heads, "score_scale", 1.0),
    "nothing is masked": lambda net: patch.object(attention, "attend", _unmasked),
    "padding of the source is seen": lambda net: patch.object(
        attention, "within", lambda lengths, size: within(torch.full_like(lengths, size), size)
    ),
    "a block is skipped": _change(lambda net: setattr(net.encoder.blocks, "0", _Identity())),
}

CAPTIONER: dict[str, Fault] = {
    "erf for tanh in GELU": _change(
        lambda net: setattr(net.decoder.blocks[0].mlp, "activation", nn.functional.gelu)
    ),
    "another epsilon in the norms": _change(
        lambda net: setattr(net.decoder.blocks[0].mlp_norm, "eps", 1e-5)
    ),
    "the final norm is missing": _change(lambda net: setattr(net.decoder, "norm", _Identity())),
    "the image's norm is missing": _change(
        lambda net: setattr(net.encoder.vit, "norm", _Identity())
    ),
    "the projection is not biased": _change(lambda net: net.encoder.projection.bias.zero_()),
    "height and width of a patch are swapped": _change(
        lambda net: net.encoder.vit.patches.projection.weight.copy_(
            net.encoder.vit.patches.projection.weight.flip(2)
        )
    ),
    "red and blue are swapped": _change(
        lambda net: net.encoder.vit.patches.projection.weight.copy_(
            net.encoder.vit.patches.projection.weight.flip(1)
        )
    ),
    "the class token has no position": _change(lambda net: net.encoder.vit.positions[:, 0].zero_()),
}


class _Identity(nn.Module):
    """Passes its first argument on."""

    def forward(self, x: Any, *rest: Any) -> Any:
        return x
