"""Mistakes that a port of Florence-2 can make, one at a time; see `faults.py`."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from export.models.captioners.florence2 import ImageEncoder
from export.models.vision import davit
from tests.export.faults.faults import MARIAN, Fault, change

_PLACES = ImageEncoder.places


def _scaled_by_width(own: davit.Channels, x: Tensor) -> Tensor:
    """Scores of channels are sums over patches, whose number scales them."""
    projected = (part(x.flatten(1, 2)) for part in (own.query, own.key, own.value))
    query, key, value = map(own.split, projected)
    scores = own.heads.score_scale * query.transpose(-1, -2) @ key
    mixed = value @ scores.softmax(dim=-1).transpose(-1, -2)
    return own.out(own.join(mixed)).unflatten(1, x.shape[1:3])


def _rows_first(own: ImageEncoder) -> Tensor:
    return _PLACES(own).roll(own.rows.shape[1], dims=-1)


def _mean_last(own: ImageEncoder, pixels: Tensor) -> Tensor:
    return _ENCODE(own, pixels).roll(-1, dims=1)


def _cut(x: Tensor, multiple: Any) -> Tensor:
    """The last windows are filled up by the first patches."""
    padded = _PAD(x, multiple)
    return torch.where(padded == 0, x[:, :1, :1], padded)


_ENCODE, _PAD = ImageEncoder.forward, davit.pad_grid

FLORENCE: dict[str, Fault] = {
    "channels are scaled as positions are": lambda net: patch.object(
        davit.Channels, "forward", _scaled_by_width
    ),
    "rows come before columns": lambda net: patch.object(ImageEncoder, "places", _rows_first),
    "the mean of the patches comes last": lambda net: patch.object(
        ImageEncoder, "forward", _mean_last
    ),
    "windows are not filled up with zeros": lambda net: patch.object(davit, "pad_grid", _cut),
    "the position in time is forgotten": change(lambda net: net.encoder.temporal.zero_()),
    "a convolution in front of attention is skipped": change(
        lambda net: net.encoder.davit.stages[0].channel[0].attention_filter.weight.zero_()
    ),
    "kinds of attention come in the other order": change(lambda net: _swap_kinds(net)),
    **{title: MARIAN[title] for title in ("a bias is dropped", "cross key and value are swapped")},
}


def _swap_kinds(net: Any) -> None:
    for stage in net.encoder.davit.stages:
        stage.spatial, stage.channel = stage.channel, stage.spatial


FAULTS = {"florence2": FLORENCE}
