"""Mistakes that a port of a captioner over a CNN can make; see `faults.py`."""

from __future__ import annotations

from typing import Any

import torch

from export.layers.images.convolutions import ConvolutionalEncoder
from export.layers.recurrence.cells import LSTM
from export.models.captioners import show_and_tell
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

FAULTS: dict[str, dict[str, Fault]] = {
    "show-and-tell": SHOW_AND_TELL,
    "cnn-transformer": CNN_TRANSFORMER,
}
