"""Mistakes that a port of a Perceiver can make, one at a time; see `faults.py`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from export.layers.attention import attention
from export.layers.images.pixel_arrays import ConvolvedPixels, FourierPositions
from export.layers.latents import LatentArray, LatentLayer
from export.models.encoders.perceiver import TextReader
from tests.export.faults.faults import Fault, change, replaced, swapped

_within = attention.within  # the fault replaces the module's


def _everything(lengths: Tensor, size: int) -> Tensor:
    """A mask that hides no padding."""
    return _within(torch.full_like(lengths, size), size)


def _with_residual(
    layer: LatentLayer, x: Tensor, source: Any = None, lengths: Any = None
) -> Tensor:
    query = layer.attention_norm(x)
    read = query if source is None else layer.source_norm(source)
    x = x + layer.attention(query, read, lengths)
    return x + layer.mlp(layer.mlp_norm(x))


def _without_residual(layer: LatentLayer) -> None:
    layer.has_residual = False


def _without_norm(layer: Any) -> None:
    layer.source_norm = nn.Identity()


def _apply_once(array: LatentArray) -> None:
    array.repeats = 1


def _by_number(reader: TextReader, hidden: Tensor, positions: Tensor) -> Tensor:
    """Queries of the masks' numbers instead of their positions."""
    numbers = torch.arange(positions.shape[1]).expand_as(positions)
    return reader.decoder(functional.embedding(numbers, reader.queries), hidden)


_places = FourierPositions.forward


def _transposed(places: FourierPositions, rows: int, columns: int) -> Tensor:
    """The place of a column in front of that of its row."""
    found = _places(places, columns, rows)
    return found.unflatten(0, (columns, rows)).transpose(0, 1).flatten(0, 1)


def _cosines_first(places: FourierPositions, rows: int, columns: int) -> Tensor:
    place, sine, cosine = _places(places, rows, columns).split([2, 128, 128], dim=-1)
    return torch.cat([place, cosine, sine], dim=-1)


def _padded_maximum(pixels: ConvolvedPixels, image: Tensor) -> Tensor:
    x = functional.relu(pixels.convolution(image))
    return functional.max_pool2d(x, kernel_size=3, stride=2, padding=1)


TEXT: dict[str, Fault] = {
    "padding is read": replaced(attention, "within", _everything),
    "the decoder adds its queries": replaced(LatentLayer, "forward", _with_residual),
    "latents are not added to what they read": change(
        lambda net: _without_residual(net.encoder.array.read)
    ),
    "inputs are not normalised": change(lambda net: _without_norm(net.encoder.array.read)),
    "layers are applied once": change(lambda net: _apply_once(net.encoder.array)),
    "queries are those of the first positions": replaced(TextReader, "vectors_at", _by_number),
    "input positions are the output queries": change(
        lambda net: net.encoder.queries.copy_(net.encoder.positions.weight)
    ),
    "query and key are swapped": swapped("encoder.array.process.0.attention", "query", "key"),
    "scores of the vocabulary are not biased": change(lambda net: net.masked.output.bias.zero_()),
}
CLASSES: dict[str, Fault] = {
    "the inputs' residual is added": replaced(LatentLayer, "forward", _with_residual),
    "the output query is not added": change(
        lambda net: _without_residual(net.classifier.pool.layer)
    ),
}
FOURIER: dict[str, Fault] = {
    "columns come first": replaced(FourierPositions, "forward", _transposed),
    "cosines come first": replaced(FourierPositions, "forward", _cosines_first),
}
CONVOLVED: dict[str, Fault] = {
    "the maximum is padded": replaced(ConvolvedPixels, "features", _padded_maximum),
    "variances are ignored": change(
        lambda net: net.network.pixels.convolution.norm.running_var.fill_(1.0)
    ),
}
LEARNED: dict[str, Fault] = {
    "positions are not projected": change(
        lambda net: setattr(net.network.pixels, "projection", nn.Identity())
    ),
    "positions are in reverse order": change(
        lambda net: net.network.pixels.table.copy_(net.network.pixels.table.flip(0))
    ),
}

FAULTS: dict[tuple[str, str], dict[str, Fault]] = {
    ("perceiver", "odd"): TEXT,
    ("perceiver", "as-wide-as-queries"): CLASSES,
    ("perceiver", "fourier"): FOURIER,
    ("perceiver", "convolved"): CONVOLVED,
    ("perceiver", "learned"): LEARNED,
}
"""(architecture, configuration) → its faults."""
