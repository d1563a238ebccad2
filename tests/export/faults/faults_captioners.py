"""Mistakes that a port of a captioner can make, one at a time; see `faults.py`."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from export.layers.images.convolutions import ConvolutionalEncoder
from export.layers.recurrence.cells import LSTM
from export.models.captioners import show_and_tell
from export.models.captioners.florence2 import ImageEncoder
from export.models.vision import davit
from tests.export.faults.faults import (
    MARIAN,
    SHOW_ATTEND_TELL,
    Fault,
    _column_by_column,
    change,
    replaced,
)


def _as_state(decoder: show_and_tell.Decoder, context: torch.Tensor) -> Any:
    """The image as the state before the first word, not as an input."""
    unread, memory = decoder.lstm.initial(decoder.image(context))
    image = decoder.image(context)
    width = min(image.shape[1], unread.shape[1])
    state = torch.nn.functional.pad(image[:, :width], (0, unread.shape[1] - width))
    return state, memory


def _unsquashed(cell: LSTM, fed: torch.Tensor, states: Any) -> Any:
    """Equation (8) of the paper, which lacks the tanh of the LSTM that everyone uses."""
    i, f, g, o = (fed + cell.recurrence(states[0])).chunk(4, dim=-1)
    memory = f.sigmoid() * states[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * memory, memory


def _mean(encoder: Any, pixels: torch.Tensor) -> torch.Tensor:
    cells = encoder.features(pixels)
    return cells.mean(dim=1, keepdim=True).expand_as(cells).flatten(1)


_CONVOLUTIONS: dict[str, Fault] = {
    "the grid is read column by column": replaced(
        ConvolutionalEncoder, "features", _column_by_column
    ),
    **{
        title: SHOW_ATTEND_TELL[title]
        for title in (
            "another epsilon in batch normalisation",
            "pictures are normalised by their batch",
            "red and blue are swapped",
        )
    },
}

SHOW_AND_TELL: dict[str, Fault] = _CONVOLUTIONS | {
    "the image is a state, not an input": replaced(
        show_and_tell.Decoder, "initial_states", _as_state
    ),
    "the image is the mean of its cells": replaced(show_and_tell.Encoder, "forward", _mean),
    "memory is shown without its tanh": replaced(LSTM, "forward", _unsquashed),
    "the image's bias is dropped": change(lambda net: net.decoder.image.bias.zero_()),
    "a bias of the LSTM is dropped": change(lambda net: net.decoder.lstm.recurrence.bias.zero_()),
}

CNN_TRANSFORMER: dict[str, Fault] = _CONVOLUTIONS | {
    "cells have no position": change(lambda net: net.encoder.positions.zero_()),
    "the projection is not biased": change(lambda net: net.encoder.projection.bias.zero_()),
    **{
        title: MARIAN[title]
        for title in (
            "a bias is dropped",
            "two norms are swapped",
            "query and key are swapped",
            "cross key and value are swapped",
            "the embedding scale is forgotten",
            "positions are off by one",
            "scores are not scaled",
            "later tokens are attended to",
            "a block is skipped",
        )
    },
}


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


FAULTS: dict[str, dict[str, Fault]] = {
    "show-and-tell": SHOW_AND_TELL,
    "cnn-transformer": CNN_TRANSFORMER,
    "florence2": FLORENCE,
}
"""Architecture → title → fault."""
