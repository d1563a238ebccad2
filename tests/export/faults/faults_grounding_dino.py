"""Mistakes that a port of Grounding DINO can make, one at a time; see `faults.py`."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from export.layers.attention import windows
from export.models.detectors import grounding_dino as model
from export.models.detectors import grounding_dino_layers as towers
from tests.export.faults.faults import Fault, change

_PHRASES, _PROPOSE = towers.Phrases.of, model.GroundingDino.propose
_SINES, _CENTRES, _SEAMS = model.sinusoids, towers.centres, windows.seams


def _one_phrase(token_ids: Tensor, lengths: Tensor) -> towers.Phrases:
    phrases = _PHRASES(token_ids, lengths)
    return phrases._replace(bias=torch.zeros_like(phrases.bias))


def _counted_through(token_ids: Tensor, lengths: Tensor) -> towers.Phrases:
    phrases = _PHRASES(token_ids, lengths)
    places = torch.arange(token_ids.shape[1])
    return phrases._replace(positions=places.expand_as(phrases.positions))


def _worst_first(own: Any, read: Any, scene: Any, chosen: Tensor | None) -> tuple[Tensor, ...]:
    found, places, best = _PROPOSE(own, read, scene, chosen)
    return found.flip(1), places, best


def _from_the_edge(grid: windows.Grid) -> Tensor:
    rows, columns = grid
    return _CENTRES(grid) - torch.tensor([0.5 / columns, 0.5 / rows])


GROUNDING: dict[str, Fault] = {
    "tokens of all phrases see each other": lambda net: patch.object(
        towers.Phrases, "of", _one_phrase
    ),
    "positions of tokens do not begin anew": lambda net: patch.object(
        towers.Phrases, "of", _counted_through
    ),
    "the best place is the last query": lambda net: patch.object(
        model.GroundingDino, "propose", _worst_first
    ),
    "a place is its upper left corner": lambda net: patch.object(towers, "centres", _from_the_edge),
    "positions are no parts of a turn": lambda net: patch.object(
        model, "sinusoids", lambda places, width, base: _SINES(places / 6.283, width, base)
    ),
    "positions of places are no parts of a turn": lambda net: patch.object(
        towers, "sinusoids", lambda places, width, base: _SINES(places / 6.283, width, base)
    ),
    "boxes are not refined": lambda net: patch.object(
        model, "logit", lambda parts: torch.zeros_like(parts)
    ),
    "windows are shifted without their seams": lambda net: patch.object(
        windows, "seams", lambda *grid: torch.zeros_like(_SEAMS(*grid))
    ),
    "the last layer's box is of vectors without a norm": lambda net: patch.object(
        model.GroundingDino, "decode", _without_norm
    ),
    "the image's part in the text is dropped": change(
        lambda net: net.encoder[0].text_scale.zero_()
    ),
}

_DECODE = model.GroundingDino.decode


def _without_norm(own: Any, found: Tensor, read: Any, grids: Any) -> tuple[Tensor, Tensor]:
    _, scores = _DECODE(own, found, read, grids)
    kept, own.norm = own.norm, nn.Identity()
    try:
        return _DECODE(own, found, read, grids)[0], scores
    finally:
        own.norm = kept


FAULTS = {"grounding-dino": GROUNDING}
